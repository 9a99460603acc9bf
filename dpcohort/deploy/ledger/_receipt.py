# SPDX-License-Identifier: Apache-2.0
"""Receipt of a client's own ledger: one data set, over all runs that its owner accepted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dpcohort._version import __version__
from dpcohort.deploy.ledger._terms import Period
from dpcohort.runs import ClientReceipt
from dpcohort.runs._receipts import Rows, shown
from dpcohort.text_files import finite_json

_KEYS = (
    *("dataset", "unit", "neighbours", "across_runs", "per", "promised_epsilon", "delta"),
    *(
        "certified_epsilon",
        "ever_epsilon",
        "counting_epsilon",
        "fewer_after",
        "holds",
        "runs",
        "ledger",
        "entries",
        "head",
        "dpcohort",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LifetimeReceipt(ClientReceipt):
    """What a data set was promised and has spent in all runs together.

    Attributes:
        across_runs: how runs are added up: ``composed`` or ``summed``.
        per: over which time the promise is made: ``lifetime`` or days. The certified epsilon is
            that of the window that has most.
        ever_epsilon: of everything that was ever spent.
        counting_epsilon: of what counts against the cap when this is written.
        fewer_after: when the first of that stops counting; empty for never.
        within_cap: the cap was never passed.
        runs: each run that the ledger accepted.
        ledger: the ledger's id.
        entries: rows of the ledger.
        head: hash of the last one; keep it, and ``verify`` finds out if it ever goes missing.
        dpcohort: version that wrote this.
    """

    across_runs: str
    per: str = "lifetime"
    ever_epsilon: float = 0.0
    counting_epsilon: float = 0.0
    fewer_after: str = ""
    within_cap: bool = True
    runs: tuple[Any, ...] = ()
    ledger: str = ""
    entries: int = 0
    head: str = ""
    dpcohort: str = __version__

    @property
    def holds(self) -> bool:
        """Whether the cap was never passed."""
        return self.within_cap

    @property
    def period(self) -> Period:
        """Over which time the promise is made."""
        return Period.of(self.per)

    @property
    def honest(self) -> int:
        """How many honest members of each cohort the runs assume, at most; 1: the client itself."""
        return max((int(run["pool"]["honest"]) for run in self.runs if "pool" in run), default=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        values |= {"dataset": self.client, "holds": self.holds, "runs": list(self.runs)}
        return dict(finite_json({key: values[key] for key in _KEYS}))

    def rows(self) -> Rows:
        """Its numbers for a table."""
        return [
            (f"promised ε {self.period.scope}", self.promised_epsilon),
            ("δ", self.delta),
            ("certified ε", self.certified_epsilon),
            *(
                [("ε of all that was ever spent", self.ever_epsilon)]
                if self.period.is_timed
                else []
            ),
            ("runs are added up", self.across_runs),
            ("neighbouring data sets", self.neighbours),
            ("ledger", self.ledger),
            ("its entries", self.entries),
            ("hash of the last entry", self.head),
        ]

    def text(self) -> str:
        """The receipt in words."""
        composed = self.across_runs == "composed"
        how = "one composition of all draws" if composed else "every begun run in full"
        lines = [
            self.client,
            f"  promised   epsilon {shown(self.promised_epsilon)} at delta {shown(self.delta)} "
            f"{self.period.scope}, for {self.unit}",
        ]
        for run in self.runs:
            asked = ""
            if "reports" in run:
                asked = (
                    ", {counted} of {accepted} reports at z = {noise_multiplier:.5g}, rate "
                    "{sampling_rate:.4g}".format(**run["reports"])
                )
            lines.append(
                "  {run}: {counted_draws} of {accepted_draws} draws counted ({released_draws} "
                "released, {unreleased_draws} not), {steps} noisy steps at z = "
                "{noise_multiplier:.5g}, rate {sampling_rate:.4g}{asked}: epsilon "
                "{certified_epsilon:.5g} of {promised_epsilon:.5g} ({neighbours})".format(
                    **run, asked=asked
                )
            )
            if "until" in run:
                lines[-1] += f", until {run['until']}"
            if "pool" in run:
                lines[-1] += (
                    ", with {honest} honest in each cohort; epsilon {alone_epsilon:.5g} if all "
                    "others collude".format(**run["pool"])
                )
        if self.runs:
            lines.append(
                "  (of a run's two epsilons the first is that of a number of draws fixed "
                "beforehand; the second holds also where a server stopped at what it liked)"
            )
        most = "in all"
        if self.period.is_timed:
            most = f"at most in any {self.per}"
            fewer = f", less after {self.fewer_after}" if self.fewer_after else ""
            lines.append(
                f"  counting   epsilon {shown(self.counting_epsilon)} now{fewer}; "
                f"{shown(self.ever_epsilon)} was ever spent"
            )
        return "\n".join(
            [
                *lines,
                f"  certified  epsilon {shown(self.certified_epsilon)} {most} ({how}; counted "
                f"under {self.neighbours}). {self.verdict()}",
                f"  ledger {self.ledger}, {self.entries} entries, head {self.head}",
                f"  dpcohort {self.dpcohort}",
            ]
        )

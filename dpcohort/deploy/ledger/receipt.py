# SPDX-License-Identifier: Apache-2.0
"""A receipt from the client's ledger: promised, spent in each run, and certified in all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dpcohort._version import __version__
from dpcohort.deploy.ledger.spending import Spending
from dpcohort.deploy.ledger.state import Account, LedgerState

__all__ = ["LifetimeReceipt", "RunSpending", "lifetime_receipt"]


@dataclass(frozen=True, kw_only=True)
class RunSpending:
    """What one run has spent of a data set.

    Attributes:
        run: its name.
        promised_epsilon: ε of the accepted terms.
        delta: δ of the accepted terms.
        accepted_draws: draws the terms allow.
        counted_draws: draws reserved; all of them count.
        released_draws: draws with an output.
        unreleased_draws: draws without one: lost, or being computed.
        steps: noisy steps counted.
        noise_multiplier: z they are charged at, the least of the terms.
        sampling_rate: r.
        neighbours: the relation of the accepted terms; both epsilons here speak of it.
        certified_epsilon: ε of the counted draws alone, at the run's δ, if their number was not
            chosen from what they gave out. ``promised_epsilon`` holds whatever a server did.
    """

    run: str
    promised_epsilon: float
    delta: float
    accepted_draws: int
    counted_draws: int
    released_draws: int
    unreleased_draws: int
    steps: int
    noise_multiplier: float
    sampling_rate: float
    neighbours: str
    certified_epsilon: float


@dataclass(frozen=True, kw_only=True)
class LifetimeReceipt:
    """What a data set was promised and has spent over all runs.

    Attributes:
        dataset: its name.
        unit: what one unit of privacy is.
        neighbours: which two data sets the total cannot tell apart.
        across_runs: how runs are added up.
        promised_epsilon: the lifetime cap.
        delta: its δ.
        certified_epsilon: spent in all, computed anew.
        holds: the total is within the cap.
        runs: each accepted run.
        ledger: the ledger's id.
        entries: rows of the ledger.
        head: hash of the last one; keep it, and ``verify`` finds out if it ever goes missing.
        dpcohort: version that wrote this.
    """

    dataset: str
    unit: str = "one record of this data set"
    neighbours: str
    across_runs: str
    promised_epsilon: float
    delta: float
    certified_epsilon: float
    holds: bool
    runs: tuple[RunSpending, ...]
    ledger: str
    entries: int
    head: str
    dpcohort: str = __version__

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "runs": [asdict(run) for run in self.runs]}

    def text(self) -> str:
        """The receipt in words."""
        how = {
            "composed": "one composition of all draws",
            "summed": "every begun run in full",
        }[self.across_runs]
        lines = [
            self.dataset,
            f"  promised   epsilon {self.promised_epsilon:.5g} at delta {self.delta:.5g} over all "
            f"runs, for {self.unit}",
        ]
        for run in self.runs:
            lines.append(
                f"  {run.run}: {run.counted_draws} of {run.accepted_draws} draws counted "
                f"({run.released_draws} released, {run.unreleased_draws} not), {run.steps} noisy "
                f"steps at z = {run.noise_multiplier:.5g}, rate {run.sampling_rate:.4g}: epsilon "
                f"{run.certified_epsilon:.5g} of {run.promised_epsilon:.5g} ({run.neighbours})"
            )
        if self.runs:
            lines.append(
                "  (of a run's two epsilons the first is that of a number of draws fixed "
                "beforehand; the second holds also where a server stopped at what it liked)"
            )
        verdict = "The promise holds." if self.holds else "THE PROMISE IS BROKEN."
        lines += [
            f"  certified  epsilon {self.certified_epsilon:.5g} in all ({how}; counted under "
            f"{self.neighbours}). {verdict}",
            f"  ledger {self.ledger}, {self.entries} entries, head {self.head}",
            f"  dpcohort {self.dpcohort}",
        ]
        return "\n".join(lines)


def lifetime_receipt(state: LedgerState, dataset: str) -> LifetimeReceipt:
    """The receipt of one data set.

    Args:
        state: what the ledger's rows add up to, from ``read_state``.
        dataset: which data set.

    Raises:
        InputError: it is not registered.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from dpcohort.deploy.ledger import ClientLedger, LifetimeCap, read_state
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ClientLedger.create(Path(folder) / "ward.ledger") as ledger:
        ...         ledger.register("ward-7", LifetimeCap(epsilon=2.0, delta=1e-5))
        ...     receipt = lifetime_receipt(read_state(Path(folder) / "ward.ledger"), "ward-7")
        >>> receipt.certified_epsilon, receipt.holds
        (0.0, True)
    """
    cap = state.cap(dataset)
    accounts = state.accounts[dataset]
    spending = Spending(cap, [(a.terms, len(a.draws)) for a in accounts.values()])
    entries, head = state.head
    return LifetimeReceipt(
        dataset=dataset,
        neighbours=spending.relation,
        across_runs=cap.across_runs,
        promised_epsilon=cap.epsilon,
        delta=cap.delta,
        certified_epsilon=spending.epsilon(),
        holds=spending.fits(),
        runs=tuple(_spending(run, account) for run, account in accounts.items()),
        ledger=state.ledger,
        entries=entries,
        head=head,
    )


def _spending(run: str, account: Account) -> RunSpending:
    terms, counted = account.terms, len(account.draws)
    return RunSpending(
        run=run,
        promised_epsilon=terms.epsilon,
        delta=terms.delta,
        accepted_draws=terms.draws,
        counted_draws=counted,
        released_draws=account.released,
        unreleased_draws=counted - account.released,
        steps=counted * terms.local_steps,
        noise_multiplier=terms.least_noise_multiplier,
        sampling_rate=terms.sampling_rate,
        neighbours=str(terms.neighbours),
        certified_epsilon=terms.certified_epsilon(counted) if counted else 0.0,
    )

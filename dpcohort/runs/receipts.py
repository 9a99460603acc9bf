# SPDX-License-Identifier: Apache-2.0
"""Receipts: per client, what was promised, planned, spent and certified.

What was spent is counted from the ledger. Its epsilon is computed anew by the independent
accountant; the plan's own certificate stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np

from dpcohort._validate import IntArray
from dpcohort._version import __version__
from dpcohort.atomic_file import atomic_writer
from dpcohort.errors import FileFormatError
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan
from dpcohort.runs.folder import finite_json, read_json, write_json

__all__ = [
    "FLOATING_POINT",
    "FORMER_STAMP",
    "NOT_PRIVATE",
    "PRIVATE_NOISE",
    "RAW_REPORTS",
    "Receipt",
    "Source",
    "make_receipts",
    "read_receipts",
    "source_of",
    "write_receipts",
]

#: Where a run's noise came from: a private stream, a seed, or floating-point numbers of a generator
#: filled with entropy, as runs on one machine had before their noise was on a lattice.
Source = Literal["private", "seed", "floating point"]

NOT_PRIVATE = (
    "NOT PRIVATE (simulation): batches and noise come from a seed, so whoever knows it can take "
    "the noise off again."
)
FLOATING_POINT = (
    "NOT PRIVATE (floating-point noise): batches came from the operating system's entropy, but the "
    "noise came from a generator whose state can be computed from its output, so whoever sees the "
    "models can take the noise off again."
)
_PRIVATE = (
    "batches and noise came from the operating system's entropy; the noise is a "
    "rounded Gaussian on a lattice, drawn exactly from a cryptographic stream."
)
#: What receipts said of every run without a seed before local noise was on a lattice.
FORMER_STAMP = (
    "batches and noise came from the operating system's entropy. A guard's noise is on a lattice; "
    "noise of a run on one machine is floating-point, and its last bits can tell more than the "
    "proof allows for."
)
RAW_REPORTS = (
    "NOT PRIVATE (raw reports): cohorts were chosen from losses that clients reported without "
    "noise, so no epsilon holds, whatever noise the updates carried."
)
#: What ``run.json`` says of the noise of a private run on one machine.
PRIVATE_NOISE = "rounded Gaussian on a lattice, ChaCha20 keyed by the operating system"
#: Above this many receipts they are lines of one file.
MOST_FILES = 10_000
_ALL = "receipts.jsonl"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """One client's account of a run.

    Attributes:
        client: its id.
        public: its data needed no privacy; the other privacy fields are then empty.
        unit: what one unit of privacy is.
        neighbours: which two data sets the promise cannot tell apart.
        sampler: how its batches were drawn.
        accountant: what chose its noise.
        promised_epsilon: its budget.
        delta: its delta.
        noise_multiplier: z, noise on the clipped sum in units of the clip.
        sampling_rate: share of its records in a batch, r.
        batch_size: the public denominator B.
        planned_draws: draws in the schedule.
        planned_steps: noisy steps they are.
        planned_epsilon: what the plan certified for them.
        spent_draws: draws in the ledger.
        spent_steps: noisy steps they are.
        certified_epsilon: what they spent at most, by the independent accountant.
        plan: hash of the plan.
        dpcohort: version that wrote this.
        stamp: whether the run was private at all.
        reports: where cohorts are chosen from reports, how many of them were allowed and made, of
            what, and with how much noise.
    """

    client: str
    public: bool
    unit: str = "one record of this client"
    neighbours: str
    sampler: str
    accountant: str
    promised_epsilon: float | None
    delta: float | None
    noise_multiplier: float | None
    sampling_rate: float
    batch_size: int
    planned_draws: int
    planned_steps: int
    planned_epsilon: float | None
    spent_draws: int
    spent_steps: int
    certified_epsilon: float | None
    plan: str
    dpcohort: str = __version__
    stamp: str
    reports: Mapping[str, Any] | None = None

    @property
    def holds(self) -> bool:
        """Whether no more was spent than promised."""
        if self.public:
            return True
        if self.certified_epsilon is None or self.promised_epsilon is None:
            return False
        return self.certified_epsilon <= self.promised_epsilon

    @property
    def unused_epsilon(self) -> float | None:
        """What is left of the promise; None for a public client, or where nothing is known."""
        if self.certified_epsilon is None or self.promised_epsilon is None:
            return None
        return max(0.0, self.promised_epsilon - self.certified_epsilon)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {**asdict(self), "holds": self.holds}
        if self.reports is None:
            del values["reports"]
        else:
            values["unused_epsilon"] = self.unused_epsilon
        found: dict[str, Any] = finite_json(values)
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Receipt:
        """What ``to_dict`` gave.

        Raises:
            TypeError: keys are missing or unknown.
        """
        computed = ("holds", "unused_epsilon")
        return cls(**{key: value for key, value in values.items() if key not in computed})

    def text(self) -> str:
        """The receipt in words."""
        if self.public:
            return (
                f"{one_line(self.client)}: public data, no budget. Drawn {self.spent_draws} of "
                f"{self.planned_draws} planned times.\n{self.stamp}"
            )
        noise = "none, it is never drawn"
        if self.noise_multiplier is not None:
            noise = (
                f"z = {self.noise_multiplier:.5g} on the clipped sum of about {self.batch_size} "
                f"records (rate {self.sampling_rate:.4g})"
            )
        verdict = "The promise holds." if self.holds else "THE PROMISE IS BROKEN."
        return "\n".join(
            [
                one_line(self.client),
                f"  promised   epsilon {_shown(self.promised_epsilon)} at delta "
                f"{_shown(self.delta)}, for {self.unit} ({self.neighbours})",
                f"  planned    {self.planned_draws} draws, {self.planned_steps} noisy steps, "
                f"epsilon {_shown(self.planned_epsilon)}",
                f"  noise      {noise}; {self.sampler} batches, {self.accountant} accountant",
                *self._report_lines(),
                f"  spent      {self.spent_draws} draws, {self.spent_steps} noisy steps",
                f"  certified  epsilon {_shown(self.certified_epsilon)}, computed anew. {verdict}",
                f"  plan {self.plan[:16]}, dpcohort {self.dpcohort}",
                f"  {self.stamp}",
            ]
        )

    def _report_lines(self) -> list[str]:
        if self.reports is None:
            return []
        told = self.reports
        noise = "no noise, RAW"
        if told["noise_multiplier"]:
            noise = f"z = {told['noise_multiplier']:.5g}, noise {told['noise_std']:.4g} on the mean"
        left = f"{_shown(self.unused_epsilon)} of epsilon unused"
        return [
            f"  reports    {told['spent']} of at most {told['planned']}, mean {told['statistic']} "
            f"up to {told['top']:g}; {noise}; {left}"
        ]


def make_receipts(
    plan: Plan,
    draws: IntArray,
    *,
    source: Source = "seed",
    clients: IntArray | None = None,
    method: str = "auto",
    reports: IntArray | None = None,
) -> list[Receipt]:
    """Receipts of the drawn clients, or of those at the given positions.

    Args:
        plan: what was promised and planned.
        draws: draws of each client as the ledger counts them.
        source: where the run's noise came from.
        clients: positions; by default every client with a planned or counted draw.
        method: of ``certify_epsilon``.
        reports: reports of each client as the ledger counts them; None where there are none.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0)
        >>> receipt = make_receipts(plan, plan.schedule.counts)[0]
        >>> receipt.holds, receipt.stamp[:11]
        (True, 'NOT PRIVATE')
    """
    counted = np.asarray(draws, dtype=np.int64)
    chosen = np.flatnonzero(plan.drawn | (counted > 0)) if clients is None else clients
    spent = plan.spent_epsilon(counted, reports, clients=chosen, method=method)
    steps = plan.training.local_steps
    population = plan.population
    receipts = []
    for row, k in enumerate(chosen.tolist()):
        public = bool(population.public[k])
        receipts.append(
            Receipt(
                client=population.ids[k],
                public=public,
                neighbours=plan.contract.neighbours,
                sampler=plan.contract.sampler,
                accountant=plan.contract.accountant,
                promised_epsilon=_known(population.epsilon[k]),
                delta=_known(population.delta[k]),
                noise_multiplier=_known(plan.noise_multipliers[k]),
                sampling_rate=float(plan.sampling_rates[k]),
                batch_size=int(plan.batch_sizes[k]),
                planned_draws=int(plan.schedule.counts[k]),
                planned_steps=int(plan.steps[k]),
                planned_epsilon=_known(plan.certified_epsilon[k]),
                spent_draws=int(counted[k]),
                spent_steps=int(counted[k]) * steps,
                certified_epsilon=_known(spent[row]),
                plan=plan.sha256,
                stamp=_stamp(plan, source),
                reports=_reports(plan, k, reports),
            )
        )
    return receipts


def source_of(settings: Mapping[str, Any]) -> Source:
    """Where a run's noise came from, by its ``run.json``.

    Guards have always put their noise on a lattice; a run on one machine says that it did.

    Example:
        >>> source_of({"randomness": "seeded"}), source_of({"randomness": "entropy"})
        ('seed', 'floating point')
        >>> source_of({"randomness": "entropy", "engine": "flower"})
        'private'
    """
    if settings.get("randomness") != "entropy":
        return "seed"
    lattice = settings.get("engine") == "flower" or settings.get("noise") == PRIVATE_NOISE
    return "private" if lattice else "floating point"


def _stamp(plan: Plan, source: Source) -> str:
    if plan.has_raw_reports:
        return RAW_REPORTS
    return {"private": _PRIVATE, "seed": NOT_PRIVATE, "floating point": FLOATING_POINT}[source]


def _reports(plan: Plan, k: int, made: IntArray | None) -> dict[str, Any] | None:
    """What a receipt says about reports."""
    if plan.terms is None:
        return None
    return {
        "statistic": plan.terms.statistic,
        "top": plan.terms.top,
        "mode": plan.terms.mode,
        "planned": int(plan.report_caps[k]),
        "spent": 0 if made is None else int(made[k]),
        "noise_multiplier": float(plan.report_multipliers[k]),
        "noise_std": float(plan.report_stds[k]),
        "sampling_rate": float(plan.report_rates[k]),
    }


def write_receipts(receipts: Iterable[Receipt], folder: Path, positions: Mapping[str, int]) -> None:
    """One file a client, or one file of lines where there are more than 10,000.

    Args:
        receipts: what to write.
        folder: where.
        positions: position of each client by id; it begins the file's name.
    """
    found = list(receipts)
    if len(found) > MOST_FILES:
        with atomic_writer(folder / _ALL) as file:
            for receipt in found:
                line = json.dumps(receipt.to_dict(), ensure_ascii=False) + "\n"
                file.write(line)
        return
    for receipt in found:
        name = f"{positions[receipt.client]}-{quote(receipt.client, safe='')[:60]}.json"
        write_json(folder / name, receipt.to_dict())


def read_receipts(folder: Path) -> list[tuple[Path, Receipt]]:
    """Every receipt in a folder, with the file it is in.

    Raises:
        FileFormatError: a file is not a receipt.
    """
    return [(path, _receipt(path, values)) for path, values in _stored(folder)]


def _stored(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    from dpcohort.runs.folder import read_log

    if (folder / _ALL).exists():
        for values in read_log(folder / _ALL):
            yield folder / _ALL, values
    for path in sorted(folder.glob("*.json")):
        yield path, read_json(path)


def _receipt(path: Path, values: dict[str, Any]) -> Receipt:
    try:
        return Receipt.from_dict(values)
    except TypeError:
        told = {*values, "holds", "unused_epsilon"}
        missing = [f.name for f in fields(Receipt) if f.default is MISSING and f.name not in told]
        unknown = sorted(told - {f.name for f in fields(Receipt)} - {"holds", "unused_epsilon"})
        key, fault = (missing[0], "missing") if missing else (unknown[0], "not known")
        raise FileFormatError(path, f"not a receipt: the key {key!r} is {fault}.") from None


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"

# SPDX-License-Identifier: Apache-2.0
"""Receipts: per client, what was promised, planned, spent and certified.

What was spent is counted from the ledger. Its epsilon is computed anew by the independent
accountant; the plan's own certificate stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np

from dpcohort._validate import IntArray
from dpcohort._version import __version__
from dpcohort.accounting.charges import (
    IN_WORDS,
    Charge,
    check_neighbours,
    in_order,
    private_clients,
    read_charge,
    total,
)
from dpcohort.accounting.distributed import NOT_PROTECTED, trust_in_words, trust_terms
from dpcohort.accounting.segments import Source
from dpcohort.atomic_file import atomic_writer
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plain_text import one_line
from dpcohort.runs.folder import CHARGES, finite_json, read_json, read_log, write_json

if TYPE_CHECKING:
    from dpcohort.plan import Plan


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
#: What a mod in a Flower app protects, by the key ``drop_in`` of a run's settings.
DROP_IN_UNITS = {
    "client": "all records of this client together",
    "record": "one record of this client",
}
DROP_IN = (
    " A mod in the Flower app clipped, counted and added the noise: code that the server ships, "
    "without the wall of a guard. The promise holds if that code was the one that ran."
)
#: Where settings may come from, by the key ``tuning.source`` of a configuration.
TUNING_SOURCES = {
    "none": "generated stand-in data of the same shape: no record was looked at, nothing was spent",
    "public": "public records: no client's record was looked at, nothing was spent",
    "charged": "the clients' records, paid for: random search with a random number of trials",
}
SIMULATED_TUNING = (
    "NOT PRIVATE (simulated tuning): the settings were chosen on the clients' records with noise "
    "of a seed."
)
#: Above this many receipts they are lines of one file.
MOST_FILES = 10_000
_ALL = "receipts.jsonl"

#: What a receipt tells where there is something to tell.
_TOLD = ("before", "weights", "tuning", "trust")
#: What ``verify`` calls a run: private, from a seed, or with noise that protects nobody.
RunKind = Literal["private", "simulation", "not private"]
#: The keys of a receipt's file: of a scheme; of a client's own ledger.
_SCHEME_KEYS = (
    *("client", "scheme", "mode", "unit", "neighbours", "sees", "promised_epsilon", "delta"),
    *("claimed_epsilon", "certified_epsilon", "noise_multiplier", "uses", "assumptions"),
    *("stamp", "holds"),
)
_LEDGER_KEYS = (
    *("dataset", "unit", "neighbours", "across_runs", "promised_epsilon", "delta"),
    *("certified_epsilon", "holds", "runs", "ledger", "entries", "head", "dpcohort"),
)


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one client was promised and has spent: in a run, by a scheme, or over all runs.

    Attributes:
        client: its id; of a client's own ledger, the name of the data set.
        public: its data needed no privacy; the other privacy fields are then empty.
        unit: what one unit of privacy is.
        neighbours: which two data sets the promise cannot tell apart.
        sampler: how its batches were drawn.
        accountant: what chose its noise.
        promised_epsilon: its budget, or its lifetime cap.
        delta: its delta.
        noise_multiplier: z, noise on the clipped sum in units of the clip; of a scheme, in units of
            how far one unit can move what is released, None if it adds no Gaussian noise.
        sampling_rate: share of its records in a batch, r.
        batch_size: the public denominator B.
        planned_draws: draws in the schedule.
        planned_steps: noisy steps they are.
        planned_epsilon: what the plan certified for them.
        spent_draws: draws in the ledger.
        spent_steps: noisy steps they are.
        certified_epsilon: what was spent at most, computed anew; infinite where nothing is proved.
        plan: hash of the plan.
        dpcohort: version that wrote this.
        stamp: whether the run was private at all.
        reports: where cohorts are chosen from reports, how many of them were allowed and made, of
            what, and with how much noise.
        weights: where training did not start from a formula or a seed, what it started from: name
            and hash of the file, whose weights they are said to be, what is frozen.
        tuning: where the settings came from, if they were tuned; what that spent before.
        charged: where part of the promise was paid beside the rounds: the whole promise, and what
            each charge took; ``promised_epsilon`` and ``delta`` are then what the plan had left.
        scheme: name of the scheme; empty where there is none.
        mode: of a scheme, ``honest`` or ``formula``.
        sees: of a scheme, the observer of the promise.
        claimed_epsilon: by a scheme's published formula; None where there is none.
        uses: noisy releases of a scheme in which the client took part.
        assumptions: what a scheme's certified number rests on.
        across_runs: how a client's own ledger adds up runs; empty elsewhere.
        within_cap: the ledger's total is within the cap.
        runs: each run that the ledger accepted.
        ledger: the ledger's id.
        entries: rows of the ledger.
        head: hash of the last one; keep it, and ``verify`` finds out if it ever goes missing.
        before: of a run that goes on from others, what the client did in each of them, and on how
            many honest members that counts if not on itself alone.
        trust: where noise is distributed, on whom the certified epsilon counts, the client's weight
            and share of noise, and the training's epsilon if all others collude.

    Example:
        >>> Receipt(client="a", neighbours="replace-one", promised_epsilon=1.0, delta=1e-5,
        ...         certified_epsilon=1.2).holds
        False
    """

    client: str
    public: bool = False
    unit: str = "one record of this client"
    neighbours: str
    sampler: str = ""
    accountant: str = ""
    promised_epsilon: float | None
    delta: float | None
    noise_multiplier: float | None = None
    sampling_rate: float = 0.0
    batch_size: int = 0
    planned_draws: int = 0
    planned_steps: int = 0
    planned_epsilon: float | None = None
    spent_draws: int = 0
    spent_steps: int = 0
    certified_epsilon: float | None
    plan: str = ""
    dpcohort: str = __version__
    stamp: str = ""
    reports: Mapping[str, Any] | None = None
    weights: Mapping[str, Any] | None = None
    tuning: Mapping[str, Any] | None = None
    charged: Mapping[str, Any] | None = None
    scheme: str = ""
    mode: str = ""
    sees: str = ""
    claimed_epsilon: float | None = None
    uses: int = 0
    assumptions: tuple[str, ...] = ()
    across_runs: str = ""
    within_cap: bool = True
    runs: tuple[Any, ...] = ()
    ledger: str = ""
    entries: int = 0
    head: str = ""
    before: tuple[Any, ...] = ()
    trust: Mapping[str, Any] | None = None

    @property
    def holds(self) -> bool:
        """Whether no more was spent than promised."""
        if self.public:
            return True
        if self.across_runs:
            return self.within_cap
        if self.certified_epsilon is None or self.promised_epsilon is None:
            return False
        return self.certified_epsilon <= self.promised_epsilon and self._is_within_the_whole()

    def _is_within_the_whole(self) -> bool:
        """Whether charges and training together are within the whole promise, to the last bit."""
        if self.charged is None:
            return True
        epsilon, delta = self.total_epsilon, self.total_delta
        whole = self.charged["promised_epsilon"], self.charged["promised_delta"]
        # A sum that is rounded up is within a number exactly where the sum itself is.
        return (
            epsilon is not None
            and delta is not None
            and (epsilon <= whole[0] and delta <= whole[1])
        )

    @property
    def total_epsilon(self) -> float | None:
        """What charges and training spent together, at ``total_delta``; None where not known."""
        return self._with_charges("epsilon", self.certified_epsilon)

    @property
    def total_alone_epsilon(self) -> float | None:
        """The same if all others collude; None where trust is not distributed."""
        alone = None if self.trust is None else self.trust["alone_epsilon"]
        return self._with_charges("epsilon", alone)

    @property
    def total_delta(self) -> float | None:
        """The delta of all that was spent, with the one that is for the training in full."""
        return self._with_charges("delta", self.delta)

    @property
    def charged_epsilon(self) -> float:
        """Epsilon that was paid beside the rounds."""
        return self._with_charges("epsilon", 0.0) or 0.0

    def _with_charges(self, which: str, amount: float | None) -> float | None:
        """An epsilon or delta with what charges took, never rounded down."""
        if self.charged is None or amount is None:
            return amount
        return total(amount, *(one[which] for one in self.charged["paid"]))

    def in_all(self) -> Receipt:
        """The receipt with the whole promise, and with all that was spent of it.

        Example:
            >>> paid = {"what": "estimate", "id": "5e0f", "epsilon": 0.25, "delta": 0.0}
            >>> took = {"promised_epsilon": 1.0, "promised_delta": 1e-5, "paid": [paid]}
            >>> receipt = Receipt(client="a", neighbours="zero-out", promised_epsilon=0.75,
            ...                   delta=1e-5, certified_epsilon=0.5, charged=took)
            >>> receipt.in_all().promised_epsilon, receipt.in_all().certified_epsilon
            (1.0, 0.75)
        """
        if self.charged is None:
            return self
        whole, trust = self.charged, self.trust
        return replace(
            self,
            promised_epsilon=whole["promised_epsilon"],
            delta=whole["promised_delta"],
            certified_epsilon=self.total_epsilon,
            trust=None if trust is None else {**trust, "alone_epsilon": self.total_alone_epsilon},
            charged=None,
        )

    @property
    def unused_epsilon(self) -> float | None:
        """What is left of the promise; None for a public client, or where nothing is known."""
        if self.certified_epsilon is None or self.promised_epsilon is None:
            return None
        return max(0.0, self.promised_epsilon - self.certified_epsilon)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as the files of a run, a scheme or a ledger have them."""
        values = {**asdict(self), "dataset": self.client, "holds": self.holds}
        keys: tuple[str, ...] = (*_RUN_KEYS, "holds")
        if self.across_runs:
            values["runs"] = list(values["runs"])
            return {key: values[key] for key in _LEDGER_KEYS}
        if self.scheme:
            keys = _SCHEME_KEYS
        elif self.reports is not None:
            values["unused_epsilon"] = self.unused_epsilon
            keys = (*_RUN_KEYS, "reports", "holds", "unused_epsilon")
        told = ("before", "tuning", "trust") if self.scheme else _TOLD
        keys = (*keys, *(key for key in told if values[key] not in (None, ())))
        if self.charged is not None:
            values |= {"total_epsilon": self.total_epsilon, "total_delta": self.total_delta}
            keys = (*keys, "charged", "total_epsilon", "total_delta")
            if self.trust is not None:
                values["total_alone_epsilon"] = self.total_alone_epsilon
                keys = (*keys, "total_alone_epsilon")
        return dict(finite_json({key: values[key] for key in keys}))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Receipt:
        """What ``to_dict`` gave of a run.

        Raises:
            InputError: a key is missing or unknown, or does not follow from the others.
        """
        computed = (
            *("holds", "unused_epsilon", "total_epsilon", "total_delta"),
            "total_alone_epsilon",
        )
        missing = [key for key in _RUN_KEYS if key not in (*values, "unit", "dpcohort")]
        unknown = sorted(set(values) - {*_RUN_KEYS, "reports", *_TOLD, "charged", *computed})
        if missing or unknown:
            key, fault = (missing[0], "missing") if missing else (unknown[0], "not known")
            raise InputError.because(f"not a receipt: the key {key!r} is {fault}.")
        given = {key: value for key, value in values.items() if key not in computed}
        if given.get("charged") is not None and not _is_charged(given["charged"]):
            raise InputError.because("not a receipt: 'charged' is not as a receipt has it.")
        receipt = cls(**{**given, "before": tuple(given.get("before") or ())})
        follows = receipt.to_dict()
        for key in computed:
            if values.get(key) != follows.get(key, values.get(key)):
                raise InputError.because(f"not a receipt: {key!r} does not follow from the rest.")
        return receipt

    def text(self) -> str:
        """The receipt in words."""
        lines = self._lines_of_ledger if self.across_runs else self._lines_of_run
        return "\n".join(self._lines_of_scheme() if self.scheme else lines())

    def _lines_of_run(self) -> list[str]:
        if self.public:
            return [
                f"{one_line(self.client)}: public data, no budget. Drawn {self.spent_draws} of "
                f"{self.planned_draws} planned times.",
                self.stamp,
            ]
        noise = "none, it is never drawn"
        if self.noise_multiplier is not None:
            noise = (
                f"z = {self.noise_multiplier:.5g} on the clipped sum of about {self.batch_size} "
                f"records (rate {self.sampling_rate:.4g})"
            )
        honest, trust, alone, total = "", [], [], []
        together = ", all runs together" if self.before else ""
        if self.trust is not None:
            members = self.trust["honest"]
            honest = f" with {members} honest member{'' if members == 1 else 's'}"
            trust = [
                f"  trust      {trust_in_words(self.trust)}",
                f"  weight     {self.trust['weight']:.4g} on its mean gradient, "
                f"{self.trust['share']:.4g} C of noise as its share",
            ]
            counted = together + ("" if self.charged is None else ", what was charged included")
            alone = [
                f"  alone      epsilon {_shown(self.total_alone_epsilon)}{counted}"
                f"{',' if counted else ''} if all others collude with the server: nothing but its "
                "own share of noise protects it then",
                f"  open       {NOT_PROTECTED}",
            ]
        if self.charged is not None:
            total = [
                f"  in all     epsilon {_shown(self.total_epsilon)} of "
                f"{_shown(self.charged['promised_epsilon'])}, delta {_shown(self.total_delta)} of "
                f"{_shown(self.charged['promised_delta'])}: what was charged and the training. "
                f"{self._verdict('BROKEN')}"
            ]
        return [
            one_line(self.client),
            *self._promise_lines(),
            f"  planned    {self.planned_draws} draws, {self.planned_steps} noisy steps, "
            f"epsilon {_shown(self.planned_epsilon)}",
            f"  noise      {noise}; {self.sampler} batches, {self.accountant} accountant",
            *trust,
            *self._report_lines(),
            *self._lines_of_before(),
            *([] if self.weights is None else [f"  weights    {weights_in_words(self.weights)}"]),
            *self._tuning_lines(),
            f"  spent      {self.spent_draws} draws, {self.spent_steps} noisy steps",
            f"  certified  epsilon {_shown(self.certified_epsilon)}"
            f"{together}{honest}, computed anew. "
            f"{self._verdict('BROKEN') if self.charged is None else ''}".rstrip(),
            *alone,
            *total,
            f"  plan {self.plan[:16]}, dpcohort {self.dpcohort}",
            f"  {self.stamp}",
        ]

    def _promise_lines(self) -> list[str]:
        whom = f"for {self.unit} ({self.neighbours})"
        here = f"epsilon {_shown(self.promised_epsilon)} at delta {_shown(self.delta)}"
        if self.charged is None:
            return [f"  promised   {here}, {whom}"]
        whole = self.charged
        paid = [
            f"epsilon {_shown(one['epsilon'])} at delta {_shown(one['delta'])} "
            f"{IN_WORDS[one['what']]} ({one['id'][:8]})"
            for one in whole["paid"]
        ]
        return [
            f"  promised   epsilon {_shown(whole['promised_epsilon'])} at delta "
            f"{_shown(whole['promised_delta'])} in all, {whom}",
            f"  charged    {', '.join(paid)}; {here} for training",
        ]

    def _lines_of_before(self) -> list[str]:
        """What was done in the runs that this one goes on from."""
        lines = []
        for run in self.before:
            done = "; ".join(
                f"{event['steps']} noisy steps at z = {event['noise_multiplier']:.5g} (rate "
                f"{event['sampling_rate']:.4g})"
                for event in run["events"]
            )
            trust = f", with {run['honest']} honest members" if done and "honest" in run else ""
            lines.append(f"  before     {done or 'took no part'}{trust}; plan {run['plan'][:16]}")
        return lines

    def _report_lines(self) -> list[str]:
        if self.reports is None:
            return []
        told = self.reports
        noise = "no noise, RAW"
        if told["noise_multiplier"]:
            noise = f"z = {told['noise_multiplier']:.5g}, noise {told['noise_std']:.4g} on the mean"
        return [
            f"  reports    {told['spent']} of at most {told['planned']}, mean {told['statistic']} "
            f"up to {told['top']:g}; {noise}; {_shown(self.unused_epsilon)} of epsilon unused"
        ]

    def _tuning_lines(self) -> list[str]:
        if self.tuning is None:
            return []
        line = f"  settings   from {TUNING_SOURCES[self.tuning['source']]}"
        if self.tuning["source"] == "charged":
            line += f"; the charge {str(self.tuning.get('charge'))[:8]}"
            if self.tuning.get("simulated"):
                line += f". {SIMULATED_TUNING}"
        return [line]

    def _lines_of_scheme(self) -> list[str]:
        if self.public:
            return [f"{self.client}: public data, no budget.", f"  {self.stamp}"]
        return [
            f"{self.client} ({self.scheme}, {self.mode})",
            f"  promised   epsilon {_shown(self.promised_epsilon)} at delta "
            f"{_shown(self.delta)}, for one {self.unit} ({self.neighbours}), against who sees "
            f"{self.sees}",
            f"  spent      {self.uses} releases, noise multiplier {_shown(self.noise_multiplier)}",
            f"  claimed    epsilon {_shown(self.claimed_epsilon)} by the published formula",
            f"  certified  epsilon {_shown(self.certified_epsilon)}. "
            f"{self._verdict('NOT CERTIFIED')}",
            *(f"  assumes    {words}" for words in self.assumptions),
            f"  {self.stamp}",
        ]

    def _lines_of_ledger(self) -> list[str]:
        composed = self.across_runs == "composed"
        how = "one composition of all draws" if composed else "every begun run in full"
        lines = [
            self.client,
            f"  promised   epsilon {_shown(self.promised_epsilon)} at delta {_shown(self.delta)} "
            f"over all runs, for {self.unit}",
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
        return [
            *lines,
            f"  certified  epsilon {_shown(self.certified_epsilon)} in all ({how}; counted under "
            f"{self.neighbours}). {self._verdict('BROKEN')}",
            f"  ledger {self.ledger}, {self.entries} entries, head {self.head}",
            f"  dpcohort {self.dpcohort}",
        ]

    def _verdict(self, otherwise: str) -> str:
        return "The promise holds." if self.holds else f"THE PROMISE IS {otherwise}."


#: The keys of a run's receipt, beside what it tells where there is something to tell.
_RUN_KEYS = tuple(takewhile(lambda key: key != "reports", Receipt.__annotations__))


def weights_in_words(weights: Mapping[str, Any]) -> str:
    """Whose weights training started from, and which of them stayed as they were.

    Args:
        weights: as ``run.json`` has them under ``model``.

    Example:
        >>> print(weights_in_words({"file": "a.safetensors", "sha256": "0" * 64, "tensors": 4,
        ...                         "source": "", "frozen": ["0"], "frozen_parameters": 1200}))
        start from 4 tensors of a.safetensors (sha256 000000000000); 1,200 parameters stay as they
        are; nobody said what they were trained on, and the promise does not cover that
    """
    parts = []
    if weights.get("file"):
        parts.append(
            f"start from {weights['tensors']} tensors of {one_line(weights['file'])} (sha256 "
            f"{str(weights['sha256'])[:12]})"
        )
    if weights.get("frozen_parameters"):
        parts.append(f"{weights['frozen_parameters']:,} parameters stay as they are")
    whose = one_line(weights["source"]) if weights.get("source") else ""
    said = f"said to be from: {whose}" if whose else "nobody said what they were trained on"
    return "; ".join([*parts, f"{said}, and the promise does not cover that"])


def make_receipts(
    plan: Plan,
    draws: IntArray,
    *,
    settings: Mapping[str, Any] | None = None,
    clients: IntArray | None = None,
    method: str = "auto",
    reports: IntArray | None = None,
    later: Sequence[Charge] = (),
) -> list[Receipt]:
    """Receipts of the drawn clients, or of those at the given positions.

    Args:
        plan: what was promised and planned.
        draws: draws of each client as the ledger counts them.
        settings: the run's ``run.json``: where its noise and its settings came from, what training
            started from, and what a mod in a Flower app protects. By default those of a simulation.
        clients: positions; by default every client with a planned or counted draw, or a charge.
        method: of ``certify_epsilon``.
        reports: reports of each client as the ledger counts them; None where there are none.
        later: what was paid after the plan was made, from `later_charges`.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0)
        >>> receipt = make_receipts(plan, plan.counts)[0]
        >>> receipt.holds, receipt.stamp[:11]
        (True, 'NOT PRIVATE')
    """
    said = settings or {}
    drop_in, paid = said.get("drop_in"), in_order((*plan.paid.charges, *later))
    counted = np.asarray(draws, dtype=np.int64)
    charged = {name for charge in paid for name in charge.spent}
    took_part = plan.drawn | (counted > 0) | plan.has_past
    took_part |= np.array([name in charged for name in plan.population.ids], dtype=np.bool_)
    chosen = np.flatnonzero(took_part) if clients is None else clients
    spent = plan.spent_epsilon(counted, reports, clients=chosen, method=method)
    alone = spent
    if plan.distributed is not None and plan.distributed.honest > 1:
        # By the accountant of the plan, so that both say the same; verify asks the other one too.
        once = "pld" if method == "auto" else method
        alone = plan.if_alone.spent_epsilon(counted, clients=chosen, method=once)
        alone = np.maximum(alone, spent)  # a bound on less noise bounds what more noise spends
    population = plan.population
    return [
        Receipt(
            client=population.ids[k],
            public=bool(population.public[k]),
            unit=DROP_IN_UNITS.get(str(drop_in), DROP_IN_UNITS["record"]),
            neighbours=plan.contract.neighbours,
            sampler=plan.contract.sampler.name,
            accountant=plan.contract.accountant,
            promised_epsilon=_known(population.epsilon[k]),
            delta=_known(population.delta[k]),
            noise_multiplier=_known(plan.noise_multipliers[k]),
            sampling_rate=float(plan.sampling_rates[k]),
            batch_size=int(plan.batch_sizes[k]),
            planned_draws=int(plan.counts[k]),
            planned_steps=int(plan.steps[k]),
            planned_epsilon=_known(plan.certified_epsilon[k]),
            spent_draws=int(counted[k]),
            spent_steps=int(counted[k]) * plan.training.local_steps,
            certified_epsilon=_known(spent[row]),
            plan=plan.sha256,
            stamp=_stamp(plan, source_of(said), later) + (DROP_IN if drop_in else ""),
            reports=_reports(plan, k, reports),
            before=_runs_before(plan, population.ids[k]),
            weights=weights_of(said),
            tuning=_tuned(said.get("tuning"), paid),
            trust=_trust(plan, k, _known(alone[row])),
            charged=_charged(plan, k, paid),
        )
        for row, k in enumerate(chosen.tolist())
    ]


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


def _runs_before(plan: Plan, client: str) -> tuple[dict[str, Any], ...]:
    """What a receipt says about the runs before."""
    found = []
    for segment in plan.before:
        history = segment.spent.get(client)
        events = [] if history is None else [event.to_dict() for event in history.events]
        run = {"plan": segment.plan, "rounds": segment.rounds, "events": events}
        found.append(run if segment.honest == 1 else {**run, "honest": segment.honest})
    return tuple(found)


def worst_source(plan: Plan, source: Source, later: Sequence[Charge] = ()) -> Source:
    """Of a run, those before it and all charges, the one with the least private noise."""
    sources = {source, *(segment.source for segment in plan.before)}
    if not all(charge.private for charge in (*plan.paid.charges, *later)):
        sources.add("seed")
    order: tuple[Source, ...] = ("seed", "floating point", "private")
    return next(one for one in order if one in sources)


def kind_of(plan: Plan, settings: Mapping[str, Any]) -> RunKind:
    """Whether a run was private, by its ``run.json`` and those of the runs before it.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=2, cohort_size=1, batch_size=9), seed=0)
        >>> kind_of(plan, {"randomness": "seeded"})
        'simulation'
    """
    source = worst_source(plan, source_of(settings))
    if plan.reports.are_raw or source == "floating point":
        return "not private"
    return "private" if source == "private" else "simulation"


def whose_word(kind: RunKind, settings: Mapping[str, Any]) -> dict[str, str]:
    """What a verification computes again, and whose word it takes for all else.

    Args:
        kind: of the run.
        settings: its ``run.json``: who added the noise.

    Example:
        >>> list(whose_word("private", {"engine": "flower"}))
        ['computed again', "each client's guard", 'the operator']
    """
    operator = "that nothing was computed but what the ledger counts, and that it lost no round"
    noise = "that batches and noise were drawn afresh, as the plan says, and kept by nobody"
    found = {
        "computed again": "every epsilon and delta from the counted draws, all counts and cohorts "
        "against the plan, the hashes of all files"
    }
    if kind != "private":
        noise = "that batches and noise are those of the plan"
    if settings.get("drop_in"):
        found["the server's mod in each client"] = f"{noise}, on which records"
    elif settings.get("engine") == "flower":
        found["each client's guard"] = f"{noise}, on which records"
    else:
        operator = f"{noise}, on which records; {operator}"
    operator += "; test results, warnings and what else is told of the training"
    return {**found, "the operator": operator}


def weights_of(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a run started from, by its ``run.json``; None for a seed's or a formula's weights.

    Example:
        >>> weights_of({"model": {"name": "logistic"}}) is None
        True
    """
    model = settings.get("model")
    found = model.get("weights") if isinstance(model, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _stamp(plan: Plan, source: Source, later: Sequence[Charge]) -> str:
    if plan.reports.are_raw:
        return RAW_REPORTS
    source = worst_source(plan, source, later)
    return {"private": _PRIVATE, "seed": NOT_PRIVATE, "floating point": FLOATING_POINT}[source]


def later_charges(folder: Path, plan: Plan) -> tuple[Charge, ...]:
    """What was paid for a run's records after its plan was made, as its folder keeps it.

    Args:
        folder: of the run.
        plan: its plan, which has the charges before.

    Raises:
        FileFormatError: a file is not the charge that its name says.
        InputError: the order of the charges is not proved, or they do not go with the plan.
    """
    found = []
    for path in sorted((folder / CHARGES).glob("*.json")):
        charge, _ = read_charge(path)
        if charge.id != path.stem:
            raise FileFormatError(path, f"it is the charge {charge.id[:12]}....")
        found.append(charge)
    check_later(found, plan)
    known = plan.paid.charges
    return tuple(one for one in in_order((*known, *found)) if one not in known)


def check_later(charges: Sequence[Charge], plan: Plan) -> None:
    """Refuse charges that have no total with a plan that was made before them.

    Args:
        charges: what was paid.
        plan: of the run whose records they are about.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0)
        >>> check_later((), plan)
    """
    check_neighbours(charges, plan.contract.neighbours)
    private = {name for _, name, _, _ in private_clients(plan.population)}
    for charge in charges:
        if bare := sorted(private & set(charge.public)):
            raise InputError.because(
                f"the charge {charge.title} looked at the records of {one_line(bare[0])!r} without "
                "noise, and the plan has a budget for them: nothing bounds what was told."
            )


def _is_charged(charged: Any) -> bool:
    """Whether that is what a receipt says of charges."""
    try:
        numbers = [charged["promised_epsilon"], charged["promised_delta"]]
        numbers += [one[key] for one in charged["paid"] for key in ("epsilon", "delta")]
        words = all(
            one["what"] in IN_WORDS and isinstance(one["id"], str) for one in charged["paid"]
        )
    except (TypeError, KeyError, IndexError):
        return False
    return words and all(type(one) in (int, float) for one in numbers)


def _charged(plan: Plan, k: int, paid: Sequence[Charge]) -> dict[str, Any] | None:
    """What a receipt says about charges; the plan has what they left of the promise."""
    name = plan.population.ids[k]
    took = [charge for charge in paid if name in charge.spent]
    if plan.population.public[k] or not took:
        return None
    epsilon, delta = plan.paid.whole(plan.population, k)
    return {
        "promised_epsilon": epsilon,
        "promised_delta": delta,
        "paid": [
            {
                "what": charge.what,
                "id": charge.id,
                "epsilon": charge.spent[name][0],
                "delta": charge.spent[name][1],
            }
            for charge in took
        ],
    }


def _tuned(tuning: Mapping[str, Any] | None, paid: Sequence[Charge]) -> dict[str, Any] | None:
    """What a receipt says about where settings came from."""
    if tuning is None:
        return None
    simulated = any(one.id == tuning.get("charge") and not one.private for one in paid)
    return {**tuning, **({"simulated": True} if simulated else {})}


def _trust(plan: Plan, k: int, alone: float | None) -> dict[str, Any] | None:
    """What a receipt says about others on whom the client counts."""
    distributed = plan.distributed
    if distributed is None:
        return None
    return {
        **trust_terms(plan.contract, plan.training.cohort_size),
        "weight": float(distributed.weights[k]),
        "share": float(distributed.shares[k]),
        "planned_alone_epsilon": _known(plan.certificate.alone_epsilon[k]),
        "alone_epsilon": alone,
    }


def _reports(plan: Plan, k: int, made: IntArray | None) -> dict[str, Any] | None:
    """What a receipt says about reports."""
    if plan.reports.terms is None:
        return None
    return {
        "statistic": plan.reports.terms.statistic,
        "top": plan.reports.terms.top,
        "mode": plan.reports.terms.mode,
        "planned": int(plan.reports.caps[k]),
        "spent": 0 if made is None else int(made[k]),
        "noise_multiplier": float(plan.reports.multipliers[k]),
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
                file.write(json.dumps(receipt.to_dict(), ensure_ascii=False) + "\n")
        return
    for receipt in found:
        name = f"{positions[receipt.client]}-{quote(receipt.client, safe='')[:60]}.json"
        write_json(folder / name, receipt.to_dict())


def read_receipts(folder: Path) -> list[tuple[Path, Receipt]]:
    """Every receipt in a folder, with the file it is in.

    Raises:
        FileFormatError: a file is not a receipt.
    """
    everyone = folder / _ALL
    stored = [(everyone, values) for values in read_log(everyone)] if everyone.exists() else []
    stored += [(path, read_json(path)) for path in sorted(folder.glob("*.json"))]
    found = []
    for path, values in stored:
        try:
            found.append((path, Receipt.from_dict(values)))
        except InputError as error:
            raise FileFormatError(path, str(error)) from None
    return found


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"

# SPDX-License-Identifier: Apache-2.0
"""Receipts of a run: per client, what was promised, planned, spent and certified.

What was spent is counted from the ledger. Its epsilon is computed anew by the independent
accountant; the plan's own certificate stands beside it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import numpy as np

from dpcohort._validate import IntArray
from dpcohort._version import __version__
from dpcohort.accounting import Charge
from dpcohort.accounting._charges import IN_WORDS, in_order, total
from dpcohort.accounting._distributed import NOT_PROTECTED, trust_in_words
from dpcohort.accounting._unit import UNITS, Unit, unit_of
from dpcohort.atomic_file import atomic_writer
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plain_text import counted, one_line
from dpcohort.plan import Plan
from dpcohort.runs._folder import read_json, read_log, write_json
from dpcohort.runs._provenance import (
    DROP_IN,
    SIMULATED_TUNING,
    TUNING_SOURCES,
    source_of,
    stamp_of,
    weights_in_words,
    weights_of,
)
from dpcohort.text_files import finite_json

#: Above this many receipts they are lines of one file.
MOST_FILES = 10_000
_ALL = "receipts.jsonl"

#: Numbers of a receipt by what they are called.
Rows = list[tuple[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ClientReceipt(ABC):
    """Common part of receipts of a run, of a client's own ledger, and of third-party schemes.

    Attributes:
        client: its id; of a client's own ledger, the name of the data set.
        public: its data needed no privacy; the other privacy fields are then empty.
        unit: what one unit of privacy is.
        neighbours: which two data sets the promise cannot tell apart.
        promised_epsilon: its budget, or its lifetime cap.
        delta: its delta.
        certified_epsilon: what was spent at most, computed anew; infinite where nothing is proved.
        stamp: whether what was done was private at all.
        trust: where noise is distributed, how many honest members the certified epsilon assumes,
            the client's weight and share of noise, and the epsilon if all others collude.
    """

    client: str
    public: bool = False
    unit: str = "one record of this client"
    neighbours: str
    promised_epsilon: float | None
    delta: float | None
    certified_epsilon: float | None
    stamp: str = ""
    trust: Mapping[str, Any] | None = None

    @property
    def unprotected(self) -> str:
        """Why nobody is protected, as the stamp begins; empty where batches and noise were private.

        Example:
            >>> simulated = Receipt(client="a", neighbours="zero-out", promised_epsilon=1.0,
            ...     delta=1e-5, certified_epsilon=0.9, stamp="NOT PRIVATE (simulation): a seed.")
            >>> simulated.unprotected
            'NOT PRIVATE (simulation)'
        """
        return self.stamp.partition(":")[0] if self.stamp.startswith("NOT PRIVATE") else ""

    @property
    def kind(self) -> dict[str, str]:
        """Whether it is private, a simulation or neither, and which unit it protects."""
        simulated = "simulation" in self.unprotected
        kind = "simulation" if simulated else self.unprotected.lower() or "private"
        return {"kind": kind, "protects": self.protects.name}

    @property
    def protects(self) -> Unit:
        """The unit of privacy, by its words."""
        whom = ("this client", "this data set")
        return next(
            (unit for unit in UNITS.values() if self.unit in map(unit.of, whom)), UNITS["record"]
        )

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

    @property
    def honest(self) -> int:
        """How many honest members of each cohort the promise assumes; 1: the client itself."""
        return 1 if self.trust is None else int(self.trust["honest"])

    @property
    def start(self) -> str:
        """What training started from, in words; empty for a formula's or a seed's weights."""
        return ""

    @property
    def paid(self) -> Sequence[tuple[str, float, float]]:
        """What was paid beside the rounds: on what, epsilon and delta."""
        return ()

    @property
    def paid_alone(self) -> Sequence[float]:
        """Epsilon of each of these if all others collude."""
        return [epsilon for _, epsilon, _ in self.paid]

    def in_all(self) -> Self:
        """The receipt with the whole promise, and with all that was spent of it."""
        return self

    def verdict(self, otherwise: str = "BROKEN") -> str:
        """Whether the promise holds, as a sentence."""
        return "The promise holds." if self.holds else f"THE PROMISE IS {otherwise}."

    @abstractmethod
    def rows(self) -> Rows:
        """Its numbers for a table."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""

    @abstractmethod
    def text(self) -> str:
        """The receipt in words."""


#: Keys of a receipt's file, in their order: what all have, and what some have.
_ALWAYS = (
    *("client", "public", "unit", "neighbours", "sampler", "accountant", "promised_epsilon"),
    *("delta", "noise_multiplier", "sampling_rate", "batch_size", "planned_draws"),
    *("planned_steps", "planned_epsilon", "spent_draws", "spent_steps", "certified_epsilon"),
    *("plan", "dpcohort", "stamp"),
)
_SOMETIMES = ("reports", "before", "weights", "tuning", "trust", "charged")


@dataclass(frozen=True, kw_only=True)
class Receipt(ClientReceipt):
    """What one client was promised and has spent in a run.

    Attributes:
        sampler: how its batches were drawn.
        accountant: what chose its noise.
        noise_multiplier: z, noise on the clipped sum in units of the clip.
        sampling_rate: share of its records in a batch, r.
        batch_size: the public denominator B.
        planned_draws: draws in the schedule.
        planned_steps: noisy steps they are.
        planned_epsilon: what the plan certified for them.
        spent_draws: draws in the ledger.
        spent_steps: noisy steps they are.
        plan: hash of the plan.
        dpcohort: version that wrote this.
        reports: where cohorts are chosen from reports, how many of them were allowed and made, of
            what, and with how much noise.
        before: of a continued run, what the client did in each earlier one, and how many honest
            members that assumes if more than itself.
        weights: where training did not start from a formula or a seed, what it started from: name
            and hash of the file, whose weights they are said to be, what is frozen.
        tuning: where the settings came from, if they were tuned; what that spent before.
        charged: where part of the promise was paid beside the rounds: the whole promise, and what
            each charge took; ``promised_epsilon`` and ``delta`` are then what the plan had left.

    Example:
        >>> Receipt(client="a", neighbours="replace-one", promised_epsilon=1.0, delta=1e-5,
        ...         certified_epsilon=1.2).holds
        False
    """

    sampler: str = ""
    accountant: str = ""
    noise_multiplier: float | None = None
    sampling_rate: float = 0.0
    batch_size: int = 0
    planned_draws: int = 0
    planned_steps: int = 0
    planned_epsilon: float | None = None
    spent_draws: int = 0
    spent_steps: int = 0
    plan: str = ""
    dpcohort: str = __version__
    reports: Mapping[str, Any] | None = None
    before: tuple[Any, ...] = ()
    weights: Mapping[str, Any] | None = None
    tuning: Mapping[str, Any] | None = None
    charged: Mapping[str, Any] | None = None

    @property
    def holds(self) -> bool:
        """Whether no more was spent than promised: in the run and with charges, to the bit."""
        if self.public or self.charged is None:
            return super().holds
        epsilon, delta = self.total_epsilon, self.total_delta
        # A sum that is rounded up is within a number exactly where the sum itself is.
        return (
            super().holds
            and epsilon is not None
            and delta is not None
            and epsilon <= self.charged["promised_epsilon"]
            and delta <= self.charged["promised_delta"]
        )

    @property
    def total_epsilon(self) -> float | None:
        """What charges and training spent together, at ``total_delta``; None where not known."""
        return self._with_charges("epsilon", self.certified_epsilon)

    @property
    def total_alone_epsilon(self) -> float | None:
        """The same if all others collude; None where trust is not distributed."""
        alone = None if self.trust is None else self.trust["alone_epsilon"]
        return self._with_charges("alone_epsilon", alone)

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
        paid = self.charged["paid"]  # of most charges all of the noise was the client's own
        return total(amount, *(one.get(which, one["epsilon"]) for one in paid))

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
    def start(self) -> str:
        """What training started from, in words; empty for a formula's or a seed's weights."""
        return "" if self.weights is None else weights_in_words(self.weights)

    @property
    def paid(self) -> Sequence[tuple[str, float, float]]:
        """What was paid beside the rounds, in the order in which it was: on what, ε and δ."""
        charges = () if self.charged is None else self.charged["paid"]
        return [
            (f"{IN_WORDS[one['what']]} ({one['id'][:8]})", one["epsilon"], one["delta"])
            for one in charges
        ]

    @property
    def paid_alone(self) -> Sequence[float]:
        """Epsilon of each of these if all others collude."""
        charges = () if self.charged is None else self.charged["paid"]
        return [one.get("alone_epsilon", one["epsilon"]) for one in charges]

    @property
    def _computed(self) -> dict[str, Any]:
        """What its file says that follows from the rest."""
        values: dict[str, Any] = {"holds": self.holds}
        if self.reports is not None:
            values["unused_epsilon"] = self.unused_epsilon
        if self.charged is not None:
            values |= {"total_epsilon": self.total_epsilon, "total_delta": self.total_delta}
            if self.trust is not None:
                values["total_alone_epsilon"] = self.total_alone_epsilon
        return values

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        optional = [key for key in _SOMETIMES if values[key] not in (None, ())]
        plain = {key: values[key] for key in (*_ALWAYS, *optional)}
        return dict(finite_json({**plain, **self._computed}))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Receipt:
        """What ``to_dict`` gave.

        Raises:
            InputError: a key is missing or unknown, or does not follow from the others.
        """
        known = {field.name for field in fields(cls)}
        given = {key: value for key, value in values.items() if key in known}
        if missing := [key for key in _ALWAYS if key not in given]:
            raise InputError.because(f"not a receipt: the key {missing[0]!r} is missing.")
        if given.get("charged") is not None and not _is_charged(given["charged"]):
            raise InputError.because("not a receipt: 'charged' is not as a receipt has it.")
        receipt = cls(**{**given, "before": tuple(given.get("before") or ())})
        computed = finite_json(receipt._computed)
        for key in sorted({*computed, *values} - known):
            if key not in computed:
                raise InputError.because(f"not a receipt: the key {key!r} is not known.")
            if values.get(key) != computed[key]:
                raise InputError.because(f"not a receipt: {key!r} does not follow from the rest.")
        return receipt

    def rows(self) -> Rows:
        """Its numbers for a table."""
        reports, whole, trust, rows = self.reports or {}, self.charged, self.trust, []
        if whole is None:
            rows += [
                ("promised ε", self.promised_epsilon),
                ("δ", self.delta),
                ("certified ε, computed anew", self.certified_epsilon),
            ]
        else:
            rows += [
                ("promised ε in all", whole["promised_epsilon"]),
                ("promised δ in all", whole["promised_delta"]),
                *((f"ε spent {words}", epsilon) for words, epsilon, _ in self.paid),
                *((f"δ spent {words}", delta) for words, _, delta in self.paid),
                ("ε left for training", self.promised_epsilon),
                ("δ left for training", self.delta),
                ("certified ε of the training, computed anew", self.certified_epsilon),
                ("sum of ε", self.total_epsilon),
                ("sum of δ", self.total_delta),
            ]
        rows += [
            ("draws planned", self.planned_draws),
            ("draws counted", self.spent_draws),
            ("noisy steps counted", self.spent_steps),
            ("noise multiplier z", self.noise_multiplier),
            (f"share of {self.protects.several} in a batch", self.sampling_rate),
            ("batch size B", self.batch_size),
        ]
        if trust is not None:
            of_training = "" if whole is None else " of the training"
            words = f"ε{of_training} if all others collude, computed anew"
            rows.append((words, trust["alone_epsilon"]))
            if whole is not None:
                rows.append(("sum of ε if all others collude", self.total_alone_epsilon))
            rows += [
                ("members of a cohort", trust["cohort_size"]),
                ("of them may help the server", trust["colluding"]),
                ("of them may drop out", trust["dropouts"]),
                ("honest shares of noise at least", trust["honest"]),
                ("weight on its mean gradient", trust["weight"]),
                ("share of noise, in units of C", trust["share"]),
            ]
        return [
            *rows,
            *((f"reports {key}", reports[key]) for key in ("planned", "spent") if key in reports),
            ("batches", self.sampler),
            ("neighbouring data sets", self.neighbours),
            ("plan (SHA-256)", self.plan),
        ]

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
                f"{self.protects.several} (rate {self.sampling_rate:.4g})"
            )
        together = ", all runs together" if self.before else ""
        honest = "" if self.trust is None else f" with {counted(self.honest, 'honest member')}"
        verdict = f" {self.verdict()}" if self.charged is None else ""
        lines = [
            *self._promise_lines(),
            (
                "planned",
                f"{self.planned_draws} draws, {self.planned_steps} noisy steps, epsilon "
                f"{shown(self.planned_epsilon)}",
            ),
            ("noise", f"{noise}; {self.sampler} batches, {self.accountant} accountant"),
            *self._trust_lines(),
            *self._report_lines(),
            *self._earlier_lines(),
            *([("weights", self.start)] if self.start else []),
            *self._tuning_lines(),
            ("spent", f"{self.spent_draws} draws, {self.spent_steps} noisy steps"),
            (
                "certified",
                f"epsilon {shown(self.certified_epsilon)}{together}{honest}, computed anew."
                f"{verdict}",
            ),
            *self._total_lines(together),
        ]
        kind = f"   {self.unprotected.upper()}" if self.unprotected else ""
        return "\n".join(
            [
                f"{one_line(self.client)}{kind}",
                *(f"  {name:<10} {words}" for name, words in lines),
                f"  plan {self.plan[:16]}, dpcohort {self.dpcohort}",
                f"  {self.stamp}",
            ]
        )

    def _promise_lines(self) -> list[tuple[str, str]]:
        whom = f"for {self.unit} ({self.neighbours})"
        here = f"epsilon {shown(self.promised_epsilon)} at delta {shown(self.delta)}"
        if self.charged is None:
            return [("promised", f"{here}, {whom}")]
        whole, delta = self.charged["promised_epsilon"], self.charged["promised_delta"]
        paid = [
            f"epsilon {shown(epsilon)} at delta {shown(delta)} {words}"
            for words, epsilon, delta in self.paid
        ]
        return [
            ("promised", f"epsilon {shown(whole)} at delta {shown(delta)} in all, {whom}"),
            ("charged", f"{', '.join(paid) or 'nothing'}; {here} for training"),
        ]

    def _trust_lines(self) -> list[tuple[str, str]]:
        if self.trust is None:
            return []
        weight = f"{self.trust['weight']:.4g} on its mean gradient"
        return [
            ("trust", trust_in_words(self.trust)),
            ("weight", f"{weight}, {self.trust['share']:.4g} C of noise as its share"),
        ]

    def _total_lines(self, together: str) -> list[tuple[str, str]]:
        """What it comes to if all others collude, and with what was charged."""
        lines = []
        if self.trust is not None:
            scope = together + ("" if self.charged is None else ", what was charged included")
            words = f"epsilon {shown(self.total_alone_epsilon)}{scope}{',' if scope else ''}"
            words += " if all others collude with the server: nothing but its own share of noise"
            lines += [("alone", f"{words} protects it then"), ("open", NOT_PROTECTED)]
        if self.charged is not None:
            whole, delta = self.charged["promised_epsilon"], self.charged["promised_delta"]
            words = f"epsilon {shown(self.total_epsilon)} of {shown(whole)}, delta "
            words += f"{shown(self.total_delta)} of {shown(delta)}: what was charged and the "
            lines.append(("in all", f"{words}training. {self.verdict()}"))
        return lines

    def _earlier_lines(self) -> list[tuple[str, str]]:
        """What was done in the runs that this one continues."""
        lines = []
        for run in self.before:
            done = "; ".join(
                f"{event['steps']} noisy steps at z = {event['noise_multiplier']:.5g} (rate "
                f"{event['sampling_rate']:.4g})"
                for event in run["events"]
            )
            trust = f", with {run['honest']} honest members" if done and "honest" in run else ""
            lines.append(("before", f"{done or 'took no part'}{trust}; plan {run['plan'][:16]}"))
        return lines

    def _report_lines(self) -> list[tuple[str, str]]:
        if (terms := self.reports) is None:
            return []
        noise = "no noise, RAW"
        if terms["noise_multiplier"]:
            noise = f"z = {terms['noise_multiplier']:.5g}, noise {terms['noise_std']:.4g} on the"
            noise += " mean"
        words = f"{terms['spent']} of at most {terms['planned']}, mean {terms['statistic']} up to "
        words += f"{terms['top']:g}; {noise}; {shown(self.unused_epsilon)} of epsilon unused"
        return [("reports", words)]

    def _tuning_lines(self) -> list[tuple[str, str]]:
        if self.tuning is None:
            return []
        words = f"from {TUNING_SOURCES[self.tuning['source']]}"
        if self.tuning["source"] == "charged":
            words += f"; the charge {str(self.tuning.get('charge'))[:8]}"
            if self.tuning.get("simulated"):
                words += f". {SIMULATED_TUNING}"
        return [("settings", words)]


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
    settings = settings or {}
    drop_in, paid = settings.get("drop_in"), in_order((*plan.past.paid.charges, *later))
    made = np.asarray(draws, dtype=np.int64)
    asked = np.zeros_like(made) if reports is None else reports
    charged = {name for charge in paid for name in charge.spent}
    took_part = plan.drawn | (made > 0) | plan.has_past
    took_part |= np.array([name in charged for name in plan.population.ids], dtype=np.bool_)
    chosen = np.flatnonzero(took_part) if clients is None else clients
    spent = plan.spent_epsilon(made, asked, clients=chosen, method=method)
    alone = spent
    if plan.noise.honest > 1:
        # By the accountant of the plan, so that both say the same; verify asks the other one too.
        once = "pld" if method == "auto" else method
        alone = plan.if_alone.spent_epsilon(made, clients=chosen, method=once)
        alone = np.maximum(alone, spent)  # a bound on less noise bounds what more noise spends
    population = plan.population
    unit = unit_of("client") if drop_in == "client" else plan.contract.unit
    return [
        Receipt(
            client=population.ids[k],
            public=bool(population.public[k]),
            unit=unit.of("this client"),
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
            spent_draws=int(made[k]),
            spent_steps=int(made[k]) * plan.training.local_steps,
            certified_epsilon=_known(spent[row]),
            plan=plan.sha256,
            stamp=stamp_of(plan, source_of(settings), later) + (DROP_IN if drop_in else ""),
            reports=plan.reports.receipt(
                k, asked, float(plan.report_stds[k]), float(plan.report_rates[k])
            ),
            before=_runs_before(plan, population.ids[k]),
            weights=weights_of(settings),
            tuning=_tuned(settings.get("tuning"), paid),
            trust=plan.noise.trust(
                k,
                plan.contract,
                plan.training.cohort_size,
                float(plan.certificate.alone_epsilon[k]),
                _known(alone[row]),
            ),
            charged=_charged(plan, k, paid),
        )
        for row, k in enumerate(chosen.tolist())
    ]


def _runs_before(plan: Plan, client: str) -> tuple[dict[str, Any], ...]:
    """What a receipt says about the runs before."""
    found = []
    for segment in plan.past.segments:
        history = segment.spent.get(client)
        events = [] if history is None else [event.to_dict() for event in history.events]
        run = {"plan": segment.plan, "rounds": segment.rounds, "events": events}
        found.append(run if segment.honest == 1 else {**run, "honest": segment.honest})
    return tuple(found)


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
    if plan.population.public[k] or not (took or plan.past.paid.kept):
        return None
    epsilon, delta = plan.past.paid.whole(plan.population, k)
    return {
        "promised_epsilon": epsilon,
        "promised_delta": delta,
        "paid": [
            {
                "what": charge.what,
                "id": charge.id,
                "epsilon": charge.spent[name][0],
                "delta": charge.spent[name][1],
                **({"alone_epsilon": charge.alone[name]} if name in charge.alone else {}),
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
        name = file_name(positions[receipt.client], receipt.client)
        write_json(folder / f"{name}.json", receipt.to_dict())


def file_name(position: int, client: str) -> str:
    """What files about a client are called, without their ending.

    Example:
        >>> file_name(3, "St. Mary/ward")
        '3-St.%20Mary%2Fward'
    """
    return f"{position}-{quote(client, safe='')[:60]}"


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


def shown(value: float | None) -> str:
    """A number of a receipt; a dash where there is none.

    Example:
        >>> shown(0.123456789), shown(None)
        ('0.12346', '-')
    """
    return "-" if value is None else f"{value:.5g}"

# SPDX-License-Identifier: Apache-2.0
"""What a client's owner says: the lifetime cap of its data, and the terms of each accepted run.

Terms are closed: all draws they allow, each at the least noise they allow, must fit the (ε, δ)
they state. Every step of the run is then dominated by one and the same mechanism, so counting
draws is a valid stopping rule, whatever a server makes of earlier answers.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from dpcohort._validate import number, whole_number
from dpcohort.accounting import Event, History
from dpcohort.accounting._distributed import agreeing_members
from dpcohort.accounting._sampler import Neighbours, Sampler
from dpcohort.accounting._samplers import SamplerName, sampler_of
from dpcohort.accounting._unit import UnitName
from dpcohort.adaptive import ReportTerms
from dpcohort.adaptive._rule import REPORT_DRAW, Statistic
from dpcohort.deploy._formats import Format, bounded, checked_name, replace, whole
from dpcohort.deploy.ledger._store import canonical_json
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.plan import Plan
from dpcohort.runs._noised_metrics import noise_of

AcrossRuns = Literal["composed", "summed"]
#: What the draws of an accepted run look at.
Purpose = Literal["training", "evaluation"]
_MOST = 10**9
_SMALLEST_EPSILON = 1e-6
Positive = Annotated[float, bounded(above=0)]
Delta = Annotated[float, bounded(above=0, below=1)]
Natural = Annotated[int, whole(at_least=1, at_most=_MOST)]


def hex_digits(digits: int, allowed: str) -> PlainValidator:
    """So many hexadecimal digits in small letters, or None; ``allowed`` says it in words."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            _check_hex(str(info.field_name), value, allowed, digits=digits)
        return value

    return PlainValidator(check)


def _check_hex(field: str, value: Any, allowed: str, *, digits: int = 64) -> None:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
        raise InputError(field, given=value, allowed=allowed)


def _resolved(value: str | None, info: ValidationInfo) -> Neighbours | None:
    sampler = info.data.get("sampler")  # not there if it was refused itself
    return None if sampler is None else sampler_of(sampler).neighbours(value)


#: The neighbouring relation of a run: the one given, or the natural one of its ``sampler``.
Relation = Annotated[Neighbours | None, AfterValidator(_resolved), Field(validate_default=True)]


@dataclass(frozen=True, kw_only=True)
class DrawKey:
    """Which draw: a draw has at most one output, ever, and this is how it is called.

    The report of a round is called by the number that no draw has, ``REPORT_DRAW``.

    Attributes:
        dataset: the registered data set.
        run: the accepted run.
        round: from 0.
        draw: position in the round's cohort, or any other number unique in the round, from 0.

    Example:
        >>> print(DrawKey(dataset="ward-7", run="spring", round=3, draw=0))
        ward-7 / spring / round 3 / draw 0
    """

    dataset: str
    run: str
    round: int
    draw: int

    def __post_init__(self) -> None:
        checked_name("dataset", self.dataset)
        checked_name("run", self.run)
        for field, most in (("round", _MOST), ("draw", REPORT_DRAW if self.is_report else _MOST)):
            value = whole_number(field, getattr(self, field), at_least=0, at_most=most)
            object.__setattr__(self, field, value)

    def __str__(self) -> str:
        draw = "" if self.is_report else f" {self.draw}"
        return f"{self.dataset} / {self.run} / round {self.round} / {self.what}{draw}"

    @property
    def is_report(self) -> bool:
        """Whether it is the report of the round."""
        return self.draw == REPORT_DRAW

    @property
    def what(self) -> str:
        """What to call it: ``draw`` or ``report``."""
        return "report" if self.is_report else "draw"


@dataclass(frozen=True)
class Period:
    """Length of time in which a cap holds: any so many days, or the lifetime of the data.

    Attributes:
        days: of the sliding window; infinite for a lifetime.

    Example:
        >>> print(Period.of("365 days"), Period.of("lifetime"), sep="; ")
        365 days; lifetime
        >>> Period(1).within([0, 93_600, 100_000], now=180_000)  # what is 86,400 s old still counts
        2
    """

    days: float = math.inf

    @classmethod
    def of(cls, given: Any) -> Period:
        """From the words of a file or an option.

        Raises:
            InputError: it is neither ``lifetime`` nor a whole number of days.
        """
        if isinstance(given, cls) or given == "lifetime":
            return given if isinstance(given, cls) else cls()
        days = re.fullmatch(r"([1-9][0-9]{0,4}) days?", given) if isinstance(given, str) else None
        if days is None:
            raise InputError("per", given=given, allowed="'lifetime' or days, such as '365 days'")
        return cls(int(days[1]))

    def __str__(self) -> str:
        return f"{self.days:.0f} days" if self.is_timed else "lifetime"

    @property
    def is_timed(self) -> bool:
        """Whether what was spent stops counting one day."""
        return math.isfinite(self.days)

    @property
    def scope(self) -> str:
        """Where the cap holds, in words."""
        return f"over all runs in any {self}" if self.is_timed else "over all runs"

    def within(self, ages: Sequence[int], now: int) -> int:
        """How many of these times, in order, are in the window that ends now."""
        return bisect.bisect_right(ages, now) - bisect.bisect_left(ages, now - self._seconds)

    def leaving(self, ages: Iterable[int]) -> list[int]:
        """When what was spent at these times leaves the window that ends then, if ever."""
        return sorted({int(age + self._seconds) + 1 for age in ages}) if self.is_timed else []

    @property
    def _seconds(self) -> float:
        return self.days * 86_400


#: Of a cap, as a file has it: ``lifetime`` or ``365 days``.
CapPeriod = Annotated[Period, PlainValidator(Period.of), PlainSerializer(str)]


class LifetimeCap(Format):
    """What one data set may spend over all runs; fixed when the data set is registered.

    Attributes:
        epsilon: ε for the lifetime of the data.
        delta: δ for the lifetime of the data.
        neighbours: the relation the cap speaks of; events of another kind are counted under
            replace-one, which covers both.
        across_runs: ``composed`` counts every draw made so far by one composition of them all. It
            holds when neither the terms of a run, nor how draws are shared out between runs,
            depend on what earlier draws gave out (arXiv 2602.06756). ``summed`` counts each begun
            run with the whole (ε, δ) of its terms and adds them up (a zero-out run under a
            replace-one cap with what its draws come to under replace-one); it holds also when a
            server chooses the next run after looking at the last.
        per: ``lifetime``, or ``365 days``: in any window of that length no more is spent. A draw
            counts from when its output was last given out.
        unit: what the cap covers: ``record``, ``person`` or ``client``.
        fingerprint: SHA-256 of the data, if given: the same data under a second name are refused.

    Example:
        >>> LifetimeCap(epsilon=1.0, delta=1e-5, per="365 days").per.scope
        'over all runs in any 365 days'
    """

    epsilon: Positive
    delta: Delta
    per: CapPeriod = Period()
    neighbours: Neighbours = "zero-out"
    across_runs: AcrossRuns = "composed"
    unit: UnitName = "record"
    fingerprint: Annotated[
        str | None, hex_digits(64, "64 hexadecimal digits in small letters (SHA-256), or None")
    ] = None


class AcceptedReports(Format):
    """What a client's owner lets an adaptive rule ask for: noisy means of clipped losses.

    Attributes:
        count: most reports of this client in the whole run, one a round.
        statistic: ``loss`` of a record, or ``squared-loss``.
        loss_bound: to which each record's loss is clipped.
        least_noise_multiplier: smallest z, in units of half the statistic's range.
        mini_batch: look at a batch of the run's rate instead of at all records.

    Example:
        >>> AcceptedReports(count=8, loss_bound=5.0, least_noise_multiplier=30.0).asked.half_range
        2.5
    """

    count: Natural
    statistic: Statistic = "loss"
    loss_bound: Positive
    least_noise_multiplier: Positive
    mini_batch: bool = False

    @property
    def asked(self) -> ReportTerms:
        """What each record's loss is made into."""
        return ReportTerms(**self.model_dump(exclude={"count", "least_noise_multiplier"}))

    @property
    def clause(self) -> str:
        """How many reports, in a sentence about draws."""
        return f" and {self.count} reports"

    @property
    def least(self) -> str:
        """How many reports at which noise, in a sentence about draws."""
        return f"{self.clause} at noise multiplier {self.least_noise_multiplier:g}"

    def sentence(self) -> str:
        """What the owner is told about them."""
        share = "a batch" if self.mini_batch else "all records"
        return (
            f" With at most {self.count} reports of the mean {self.statistic} of {share}, losses "
            f"cut at {self.loss_bound:g}, noise multiplier at least "
            f"{self.least_noise_multiplier:.5g}; their epsilon is in it."
        )

    def terms(self, run: RunTerms) -> RunTerms:
        """What reports of a run must keep to, each being a draw of one step on clipped losses."""
        return replace(
            run,
            clip=self.asked.half_range,
            sampling_rate=run.sampling_rate if self.mini_batch else 1.0,
            local_steps=1,
            draws=self.count,
            least_noise_multiplier=self.least_noise_multiplier,
            reports=None,
        )

    def history(self, run: RunTerms) -> History:
        """What all of them are charged."""
        return History((self.terms(run).charge(self.count),))

    def spending(self, run: RunTerms, made: Mapping[Any, Any]) -> dict[str, Any]:
        """What a receipt says of those that were counted, by their outputs."""
        spent = {
            "accepted": self.count,
            "counted": len(made),
            "released": sum(output is not None for output in made.values()),
            "noise_multiplier": self.least_noise_multiplier,
            "sampling_rate": self.terms(run).sampling_rate,
        }
        return {"reports": spent}


class NoReports:
    """No reports are accepted: the empty value of :class:`AcceptedReports`."""

    count = 0
    clause = least = ""

    @property
    def asked(self) -> ReportTerms:
        """There is nothing.

        Raises:
            InputError: always.
        """
        raise InputError.because("the client's owner has accepted no reports in this run.")

    @property
    def statistic(self) -> Statistic:
        """Of no record."""
        return self.asked.statistic

    def sentence(self) -> str:
        """Nothing is said."""
        return ""

    def terms(self, run: RunTerms) -> RunTerms:
        """There are none.

        Raises:
            InputError: always.
        """
        raise InputError.because("the client's owner has accepted no reports in this run.")

    def history(self, run: RunTerms) -> History:
        """Nothing is charged."""
        return History()

    def spending(self, run: RunTerms, made: Mapping[Any, Any]) -> dict[str, Any]:
        """Nothing is said."""
        return {}


def _members(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise InputError("members", given=given, allowed="a table of names and their public keys")
    for name, key in given.items():
        checked_name("member", name)
        _check_hex(f"key of {name}", key, "the 64 hexadecimal digits of an Ed25519 public key")
    if len(set(given.values())) < len(given):
        raise InputError.because("two members have the same key: each must be somebody of its own.")
    return dict(given)


#: Names of clients and their public keys, each another one.
Members = Annotated[Mapping[str, str], PlainValidator(_members)]


def _cohorts(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping) or not given:
        raise InputError("cohorts", given=given, allowed="a table of rounds and hashes of cohorts")
    for round, digest in given.items():
        if not isinstance(round, str) or not re.fullmatch("0|[1-9][0-9]{0,9}", round):
            raise InputError("round", given=round, allowed="a whole number")
        _check_hex(f"cohort of round {round}", digest, "the 64 hexadecimal digits of a SHA-256")
    return dict(given)


class AcceptedGroup(Format):
    """What a client's owner counts on where noise is distributed: who the others are, and how many.

    Attributes:
        cohort_size: K, members of every cohort.
        colluding: how many of a cohort's other members may help the server.
        dropouts: how many members may vanish after they were asked.
        exponent: e of the lattice all members share; each adds ``round(2^e Z)``.
        modulus_bits: sums are taken modulo two to this.
        members: name and Ed25519 public key (hexadecimal) of everybody who may be in a cohort.
        cohorts: rounds in which the client takes part, with the SHA-256 of the cohort's names
            (:func:`~dpcohort.deploy.secure_aggregation._protocol.cohort_sha256`).

    Example:
        >>> pool = AcceptedGroup(cohort_size=10, colluding=2, dropouts=1, exponent=22,
        ...     modulus_bits=40, members={f"ward-{i}": f"{i:064x}" for i in range(10)},
        ...     cohorts={"0": "a" * 64})
        >>> pool.honest, pool.threshold
        (7, 7)
    """

    cohort_size: Annotated[int, whole(at_least=2, at_most=10_000)]
    colluding: Annotated[int, whole(at_least=0)]
    dropouts: Annotated[int, whole(at_least=0)]
    exponent: Annotated[int, whole(at_least=0, at_most=40)]
    modulus_bits: Annotated[int, whole(at_least=2, at_most=62)]
    members: Members
    cohorts: Annotated[Mapping[str, str], PlainValidator(_cohorts)]

    @property
    def honest(self) -> int:
        """h: members, oneself among them, whose noise surely is in a sum and known to nobody."""
        return self.cohort_size - self.colluding - self.dropouts

    @property
    def groups(self) -> tuple[AcceptedGroup, ...]:
        """Itself alone."""
        return (self,)

    def group(self) -> AcceptedGroup:
        """Itself."""
        return self

    def refuse_single_updates(self) -> None:
        """Refuse an update that is under no mask."""
        raise InputError.because(
            "the client's owner pools noise in this run: only masked sums leave"
        )

    def check_draw(self, draw: int) -> None:
        """Refuse a second draw of a round: masks have the name of the round, and are used once."""
        if draw != 0:
            raise InputError("draw", given=draw, allowed="0, the one of a round, where distributed")

    def masked(self, released: Any) -> Any:
        """What a draw gave out, which masks can be taken off."""
        return released

    def greeting(self) -> dict[str, Any]:
        """What a server is told of it."""
        return {"pool": self.outline()}

    def worst_case(self, run: RunTerms) -> dict[str, float]:
        """Epsilon of all draws of a run if all others collude with the server."""
        return {"alone_epsilon": run.alone_epsilon()}

    def sentence(self, run: RunTerms) -> str:
        """What the owner of a run's data is told about the others."""
        return (
            f" That counts on the noise of others: of each cohort of {self.cohort_size}, all named "
            f"in the terms, at most {self.colluding} help the server and at most {self.dropouts} "
            f"vanish. If all others help it, epsilon is {run.alone_epsilon():.5g}."
        )

    def spending(self, run: RunTerms, counted: int, unmasked: int) -> dict[str, Any]:
        """What a receipt says of a run with so many draws, and rounds that were unmasked."""
        alone = run.alone_epsilon(counted) if counted else 0.0
        return {"pool": {"honest": self.honest, "unmasked": unmasked, "alone_epsilon": alone}}

    @property
    def threshold(self) -> int:
        """Members that must agree before a secret is known: no two sets of so many are honest."""
        return agreeing_members(self.cohort_size, self.colluding)

    def outline(self) -> dict[str, Any]:
        """All of it in few bytes: of the two tables, which may be long, the SHA-256."""
        tables = {"members": self.members, "cohorts": self.cohorts}
        hashes = {
            name: hashlib.sha256(canonical_json(dict(table)).encode()).hexdigest()
            for name, table in tables.items()
        }
        return {**self.model_dump(exclude=set(tables)), **hashes}

    @model_validator(mode="after")
    def _check_trust(self) -> AcceptedGroup:
        if self.honest < 2:
            raise InputError.because(
                f"of a cohort of {self.cohort_size}, {self.colluding} colluding and "
                f"{self.dropouts} vanished members leave nobody to count on but oneself: adding "
                "masks buys nothing then. Use trust = 'local'."
            )
        if self.cohort_size - self.dropouts < self.threshold:
            raise InputError(
                "dropouts",
                given=self.dropouts,
                allowed=f"at most {self.cohort_size - self.threshold} in a cohort of "
                f"{self.cohort_size} of whom {self.colluding} may collude",
                next_step="More than half of those who do not collude must stay to agree on who "
                "is left.",
            )
        if len(self.members) < self.cohort_size:
            allowed = f"at least the {self.cohort_size} of a cohort"
            raise InputError("members", given=len(self.members), allowed=allowed)
        return self


class AcceptedEvaluation(Format):
    """What a client's owner lets the model of a run be evaluated with: one noised sum, once.

    A ledger counts it as a run of its own, of one draw of one step, whose records are those that
    are held out for tests; each of them adds a vector of length 1 at most.

    Attributes:
        epsilon: that it spends beside the run's own.
        delta: the same way.
        least_noise_multiplier: smallest noise on the sum.
        pool: whose noise is counted on beside one's own; None for nobody's.

    Example:
        >>> AcceptedEvaluation(epsilon=0.05, delta=5e-7, least_noise_multiplier=72.5).sentence()
        ' Its model is evaluated once, ... epsilon 0.05 at delta 5e-07 beside the above.'
    """

    epsilon: Positive
    delta: Delta
    least_noise_multiplier: Positive
    pool: AcceptedGroup | None = None

    def sentence(self) -> str:
        """What the owner is told about it."""
        others = "" if self.pool is None else f", with {self.pool.honest} honest shares of noise"
        return (
            " Its model is evaluated once, by a sum over the test records with noise "
            f"{self.least_noise_multiplier:.5g}: epsilon {self.epsilon:g} at delta {self.delta:g} "
            f"beside the above{others}."
        )

    def terms(self, run: RunTerms) -> RunTerms:
        """The same as terms of a run of its own."""
        return replace(
            run,
            **dict(self),
            clip=1.0,
            sampling_rate=1.0,
            local_steps=1,
            rounds=1,
            draws=1,
            reports=None,
            purpose="evaluation",
        )


class Alone:
    """Nobody else's noise is counted on: the empty value of :class:`AcceptedGroup`."""

    cohort_size = honest = 1
    exponent = None
    groups: tuple[AcceptedGroup, ...] = ()

    def group(self) -> AcceptedGroup:
        """There is none.

        Raises:
            InputError: always.
        """
        raise InputError.because("the client's owner pools no noise in this run")

    def refuse_single_updates(self) -> None:
        """Every update has all of its noise."""
        return

    def check_draw(self, draw: int) -> None:
        """A round may have several draws."""
        return

    def masked(self, released: Any) -> Any:
        """Nothing: no draw is masked."""
        return None

    def greeting(self) -> dict[str, Any]:
        """Nothing is said."""
        return {}

    def worst_case(self, run: RunTerms) -> dict[str, float]:
        """Nothing is said: others change nothing."""
        return {}

    def sentence(self, run: RunTerms) -> str:
        """Nothing is said."""
        return ""

    def spending(self, run: RunTerms, counted: int, unmasked: int) -> dict[str, Any]:
        """Nothing is said."""
        return {}


def _last_day(given: Any) -> date:
    if isinstance(given, date) and not isinstance(given, datetime):
        return given
    try:
        return date.fromisoformat(given)
    except (TypeError, ValueError):
        raise InputError("until", given=given, allowed="a date, such as 2027-03-31") from None


#: Last day of a permit, UTC; the last of all days where it has no end.
LastDay = Annotated[date, PlainValidator(_last_day), PlainSerializer(date.isoformat)]


class DrawTerms(Format):
    """What an owner's file and a client's ledger both say of the draws of a run.

    Attributes:
        epsilon: ε that all draws and reports of the run together may spend.
        delta: δ of the run.
        clip: largest clip C; noise is in units of it.
        local_steps: noisy steps of one draw.
        rounds: rounds are numbered 0 to ``rounds`` - 1.
        draws: most draws of this client in the whole run.
        sampler: ``poisson`` or ``fixed``.
        neighbours: ``zero-out`` or ``replace-one``.
        reports: noisy means of losses that may be asked for beside draws; None for none.
        pool: whose noise is counted on beside one's own, and how many of them; None for nobody's.
        until: last day of the permit, UTC; nothing is counted or given out after it.
    """

    epsilon: Positive
    delta: Delta
    clip: Positive
    local_steps: Natural
    rounds: Natural
    draws: Natural
    sampler: SamplerName = "poisson"
    neighbours: Relation = None
    reports: AcceptedReports | None = None
    pool: AcceptedGroup | None = None
    until: LastDay = date.max

    @property
    def reporting(self) -> AcceptedReports | NoReports:
        """What may be asked beside draws."""
        return self.reports or NoReports()

    @property
    def trust(self) -> AcceptedGroup | Alone:
        """Whose noise is counted on."""
        return self.pool or Alone()


def evaluation_of(run: str) -> str:
    """The name under which a ledger counts the evaluation of a run's model."""
    return f"{run} (evaluation)"


def asked_of(plan: Plan, k: int) -> dict[str, Any]:
    """The terms that a plan asks of the client at this position; their rate is apart."""
    return {
        "epsilon": plan.past.epsilon_of_terms(plan, k),
        "delta": float(plan.population.delta[k]),
        "clip": float(plan.training.clip),
        "local_steps": plan.training.local_steps,
        "rounds": plan.training.rounds,
        "draws": int(plan.counts[k]),
        "least_noise_multiplier": float(plan.noise_multipliers[k]),
        "sampler": plan.contract.sampler.name,
        "neighbours": plan.contract.neighbours,
    }


def reports_asked_of(plan: Plan, k: int) -> dict[str, Any]:
    """The reports that a plan's rule asks of the client at this position; nothing if it does not.

    They are what :class:`AcceptedReports` says of them.
    """
    return plan.reports.asked_of(k)


def evaluation_asked_of(plan: Plan, k: int) -> dict[str, Any]:
    """The evaluation that a plan keeps a share for, of the client at this position; or nothing."""
    epsilon, delta = plan.past.paid.kept_of(plan.population.ids[k])
    if not epsilon:
        return {}
    (noise,) = noise_of(np.array([epsilon]), np.array([delta]), plan.contract.sensitivity)
    return {"epsilon": epsilon, "delta": delta, "least_noise_multiplier": float(noise)}


class RunTerms(DrawTerms):
    """The terms of one run, as the client's owner accepts them.

    Attributes:
        purpose: a training, or the evaluation of its model on other records than it is trained on.
        sampling_rate: r of every step.
        least_noise_multiplier: smallest z; every draw is charged at it, also one with more noise.
            With a ``pool`` it is that of h honest shares.

    Example:
        >>> terms = RunTerms(epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=1,
        ...                  rounds=60, draws=60, least_noise_multiplier=2.0)
        >>> round(terms.certified_epsilon(), 2)
        1.81
    """

    purpose: Purpose = "training"
    sampling_rate: Annotated[float, bounded(above=0, at_most=1)]
    least_noise_multiplier: Positive

    @model_validator(mode="after")
    def _check_steps(self) -> RunTerms:
        whole_number("draws x local_steps", self.draws * self.local_steps, at_most=_MOST)
        if self.trust.groups and (self.local_steps != 1 or self.reporting.count):
            raise InputError.because(
                "with distributed noise a draw has one local step and there are no reports: only "
                "sums of a whole cohort carry the noise that is counted on."
            )
        return self

    @classmethod
    def of_plan(cls, plan: Plan, client: str) -> RunTerms:
        """What a plan asks of a client that it draws, and no more.

        Args:
            plan: with local noise and without reports or runs before it.
            client: its id.

        Raises:
            InputError: it is not drawn or has no budget, or terms of the plan need a guard.

        Example:
            >>> from dpcohort import Population, Training, make_plan
            >>> clients = Population.from_arrays(sizes=[600] * 3, epsilon=[4, 8, 8], delta=1e-5)
            >>> plan = make_plan(clients, Training(rounds=4, cohort_size=2, batch_size=60), seed=0)
            >>> RunTerms.of_plan(plan, clients.ids[1]).certified_epsilon() <= 8
            True
        """
        k = plan.population.index_of(client)
        if not plan.drawn[k] or plan.population.public[k]:
            raise InputError("client", given=client, allowed="one with a budget that is drawn")
        if not plan.is_simple:
            raise InputError.because(
                "the plan pools noise, chooses from reports or goes on from a run: its terms are "
                "for a guard. dpcohort flower init writes them."
            )
        return cls(**asked_of(plan, k), sampling_rate=float(plan.sampling_rates[k]))

    @property
    def drawn_by(self) -> Sampler:
        """How the batches of one draw are made."""
        return sampler_of(self.sampler).over(self.local_steps)

    def charge(self, draws: int) -> Event:
        """What this many draws are charged: their steps at the least noise of the terms."""
        return Event.of(
            noise_multiplier=self.least_noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=draws * self.local_steps,
            sampler=self.drawn_by,
            neighbours=self.neighbours,
        )

    @classmethod
    def of_event(cls, event: Event, *, clip: float, delta: float) -> RunTerms:
        """Terms of draws that are these steps, closed at their certified epsilon.

        There is one draw, or as many as the sampler's uses where it draws several steps together.

        Example:
            >>> done = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=60)
            >>> round(RunTerms.of_event(done, clip=1.0, delta=1e-5).epsilon, 2)
            1.81
        """
        epsilon = max(History((event,)).epsilon(delta), _SMALLEST_EPSILON)
        while History((event,)).delta(epsilon) > delta:  # both are bounds, each with its rounding
            epsilon *= 1 + 1e-6
        mechanism = event.mechanism
        draws = event.count if mechanism.sampler.is_joint else 1
        return cls(
            epsilon=epsilon,
            delta=delta,
            clip=clip,
            sampling_rate=mechanism.sampling_rate,
            local_steps=event.steps // draws,
            rounds=draws,
            draws=draws,
            least_noise_multiplier=mechanism.noise_multiplier,
            sampler=mechanism.sampler.name,
            neighbours=mechanism.neighbours,
        )

    @property
    def most(self) -> tuple[int, int]:
        """How many draws and how many reports the run may have."""
        return self.draws, self.reporting.count

    def of_reports(self) -> RunTerms:
        """What reports must keep to.

        Raises:
            InputError: the owner accepted none.
        """
        return self.reporting.terms(self)

    def history(self, draws: int, reports: int = 0) -> History:
        """What this many draws and reports are charged."""
        charged = (self.charge(draws),)
        return History(charged if not reports else (*charged, self.of_reports().charge(reports)))

    def certified_epsilon(self, *counted: int) -> float:
        """An upper bound on the ε of so many draws and reports (all of the run, if not given)."""
        return self.history(*(counted or self.most)).epsilon(self.delta)

    def alone_epsilon(self, *counted: int) -> float:
        """The same if all others collude with the server: of one's own share of noise alone."""
        own = self.least_noise_multiplier / math.sqrt(self.trust.honest)
        return replace(self, least_noise_multiplier=own, pool=None).certified_epsilon(*counted)

    def to_dict(self) -> dict[str, Any]:
        """Everything that is said as plain values."""
        unsaid = {name for name in ("reports", "pool") if getattr(self, name) is None}
        unsaid |= set() if self.purpose == "evaluation" else {"purpose"}
        return self.model_dump(exclude=unsaid | (set() if self.is_timed else {"until"}))

    @property
    def is_timed(self) -> bool:
        """Whether the permit ends one day."""
        return self.until < date.max

    def check_lasts(self, day: date, what: str) -> None:
        """Refuse what would be counted or given out after the permit's last day.

        Raises:
            BudgetExceededError: the permit has ended.
        """
        if day > self.until:
            raise BudgetExceededError(
                f"{what}: the permit ended with {self.until}, and it is {day} or later. Nothing "
                "more is spent under it; a new run needs terms that the client's owner accepts."
            )

    def check_closed(self) -> None:
        """Refuse terms that allow more than the (ε, δ) they state.

        Raises:
            BudgetExceededError: all draws and reports at their least noise would spend more.
        """
        if self.history(*self.most).delta(self.epsilon) > self.delta:
            raise BudgetExceededError(
                f"These terms allow {self.draws} draws of {self.local_steps} steps at noise "
                f"multiplier {self.least_noise_multiplier:g} and rate {self.sampling_rate:g}"
                f"{self.reporting.least}: "
                f"epsilon {self.certified_epsilon():.6g} at delta {self.delta:g}, above the "
                f"{self.epsilon:g} they state. Ask for more noise or fewer draws."
            )

    def check_request(self, event: Event, *, clip: float, round: int) -> None:
        """Refuse a draw that is not within the terms.

        Raises:
            InputError: naming what was asked and what was accepted.
        """

        def refused(field: str, asked: object, allowed: str) -> InputError:
            next_step = "The client's owner accepted these terms; a server cannot change them."
            return InputError(field, given=asked, allowed=allowed, next_step=next_step)

        mechanism = event.mechanism
        for field, asked, accepted in (
            ("sampling_rate", mechanism.sampling_rate, self.sampling_rate),
            ("steps", event.steps, self.local_steps),
            ("sampler", mechanism.sampler.name, self.sampler),
            ("neighbours", mechanism.neighbours, self.neighbours),
        ):
            if asked != accepted:
                raise refused(field, asked, f"{accepted!r} as accepted")
        if mechanism.noise_multiplier < self.least_noise_multiplier:
            allowed = f"at least {self.least_noise_multiplier:g} as accepted"
            raise refused("noise_multiplier", mechanism.noise_multiplier, allowed)
        if number("clip", clip, above=0) > self.clip:
            raise refused("clip", clip, f"at most {self.clip:g} as accepted")
        if round >= self.rounds:
            raise refused("round", round, f"below the {self.rounds} rounds accepted")

# SPDX-License-Identifier: Apache-2.0
"""What clients spent in earlier runs that a plan goes on from, and what is left of their budgets.

A *segment* is one earlier run: its plan, its ledger, and the events of each client that the ledger
counts. Segments stay in a chain for good, also the events of clients that left: a client that comes
back, or anybody under its id, finds what was spent under it.

A *charge* is what was spent on records beside the rounds of a run: an estimate of bounds, or
tuning. It is an (ε, δ) of each client that is taken off its promise first, by simple composition,
which needs no more than that the charge keeps its (ε, δ); the rest is for the training.

What a client spent is composed with what it will do, as in :mod:`.events`, so the totals hold where
who leaves, joins or changes is not decided from what the training gave out. A record's history is
at most its client's: a record that came later was in fewer steps, and steps without it tell nothing
about it. So the client's total is charged to all of its records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from dpcohort._validate import choice, number, whole_number
from dpcohort.accounting.closed_forms import gaussian_mu
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.events import Event, History, gaussian_epsilon
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.plain_text import one_line

#: Where a run's noise came from: a private stream, a seed, or floating-point numbers of a generator
#: filled with entropy, as runs on one machine had before their noise was on a lattice.
Source = Literal["private", "seed", "floating point"]

#: Less than this share of a budget left is none: the noise would be twenty times as large.
LEAST_LEFT = 0.05
_MOST_NAMED = 5


#: What a charge can be for.
Purpose = Literal["estimate", "tuning"]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What was spent on clients' records beside the rounds of a run.

    Attributes:
        what: an estimate of bounds, or tuning.
        id: which one; empty for a tuning that a seed repeats.
        private: its noise came from the operating system's entropy.
        spent: epsilon and delta of each client that paid, by id.

    Example:
        >>> paid = Charge(what="tuning", id="", private=False, spent={"north": (0.5, 5e-6)})
        >>> Charge.from_dict(paid.to_dict()) == paid
        True
    """

    what: Purpose
    id: str
    private: bool
    spent: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        choice("charges.what", self.what, get_args(Purpose))
        for name, (epsilon, delta) in self.spent.items():
            number(f"epsilon that {name!r} was charged", epsilon, at_least=0)
            number(f"delta that {name!r} was charged", delta, at_least=0, below=1)

    def to_dict(self) -> dict[str, Any]:
        """The charge as plain JSON values."""
        return {**asdict(self), "spent": {name: list(both) for name, both in self.spent.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Charge:
        """The charge from :meth:`to_dict`."""
        spent = {str(name): (both[0], both[1]) for name, both in values["spent"].items()}
        private = values["private"] is True
        return cls(what=values["what"], id=str(values["id"]), private=private, spent=spent)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One earlier run of a training that goes on.

    Attributes:
        plan: hash of its plan.
        ledger: SHA-256 of its ledger, whole lines.
        rounds: rounds that the ledger counts.
        source: where its noise came from.
        spent: events of each client with a budget that took part, by id.
        without_noise: ids of clients that took part as public ones; no epsilon bounds what was
            told of their records.
        honest: h, members on whose shares of noise its multipliers count; 1 where trust is local.
        charges: what was spent beside its rounds, before them.

    Example:
        >>> event = Event(noise_multiplier=2.0, sampling_rate=0.1, steps=50)
        >>> first = Segment(plan="a" * 64, ledger="b" * 64, rounds=50, source="seed",
        ...                 spent={"north": History((event,))})
        >>> Segment.from_dict(first.to_dict()) == first
        True
    """

    plan: str
    ledger: str
    rounds: int
    source: Source
    spent: Mapping[str, History]
    without_noise: tuple[str, ...] = field(default=())
    honest: int = 1
    charges: tuple[Charge, ...] = ()

    def __post_init__(self) -> None:
        whole_number("before.rounds", self.rounds, at_least=0)
        choice("before.source", self.source, get_args(Source))
        whole_number("before.honest", self.honest, at_least=1)

    def if_alone(self) -> Segment:
        """What its clients must count if all others collude: the noise of their own shares.

        Example:
            >>> event = Event(noise_multiplier=2.0, sampling_rate=0.1, steps=50)
            >>> first = Segment(plan="", ledger="", rounds=50, source="seed", honest=4,
            ...                 spent={"north": History((event,))})
            >>> first.if_alone().spent["north"].events[0].noise_multiplier
            1.0
        """
        if self.honest == 1:
            return self
        root = math.sqrt(self.honest)
        spent = {
            name: History(
                tuple(replace(e, noise_multiplier=e.noise_multiplier / root) for e in h.events)
            )
            for name, h in self.spent.items()
        }
        return replace(self, spent=spent, honest=1)

    def to_dict(self) -> dict[str, Any]:
        """The segment as plain JSON values."""
        events = {
            name: [event.to_dict() for event in history.events]
            for name, history in sorted(self.spent.items())
        }
        plain = {**asdict(self), "spent": events, "without_noise": list(self.without_noise)}
        # The hash of a plan without these is what it always was.
        if self.honest == 1:
            del plain["honest"]
        del plain["charges"]
        if self.charges:
            plain["charges"] = [charge.to_dict() for charge in self.charges]
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Segment:
        """The segment from :meth:`to_dict`."""
        spent = {
            str(name): History(tuple(Event.from_dict(event) for event in events))
            for name, events in values["spent"].items()
        }
        return cls(
            plan=str(values["plan"]),
            ledger=str(values["ledger"]),
            rounds=values["rounds"],
            source=values["source"],
            spent=spent,
            without_noise=tuple(map(str, values["without_noise"])),
            honest=values.get("honest", 1),
            charges=tuple(Charge.from_dict(charge) for charge in values.get("charges", ())),
        )


def charges_in(before: Sequence[Segment]) -> tuple[Charge, ...]:
    """All charges of earlier runs, oldest first.

    Example:
        >>> charges_in(())
        ()
    """
    return tuple(charge for segment in before for charge in segment.charges)


def charged_to(
    charges: Sequence[Charge], client: str, what: Purpose | None = None
) -> tuple[float, float]:
    """Epsilon and delta that charges took of a client, never rounded down.

    Args:
        charges: what was spent.
        client: its id.
        what: only charges for this.

    Example:
        >>> paid = Charge(what="tuning", id="", private=False, spent={"north": (0.5, 5e-6)})
        >>> charged_to([paid, paid], "north"), charged_to([paid], "south")
        ((1.0, 1e-05), (0.0, 0.0))
    """
    paid = [
        charge.spent[client]
        for charge in charges
        if client in charge.spent and what in (None, charge.what)
    ]
    epsilon, delta = (sum((Fraction(one[place]) for one in paid), Fraction()) for place in (0, 1))
    return 0.0 - left(0.0, epsilon), 0.0 - left(0.0, delta)


def left(promised: float, charged: float | Fraction) -> float:
    """What is left of a budget, never rounded up.

    Example:
        >>> left(1.0, 0.25)
        0.75
    """
    exact = Fraction(promised) - Fraction(charged)
    near = float(exact)
    return near if Fraction(near) <= exact else float(np.nextafter(near, -np.inf))


def after_charges(population: Population, charges: Sequence[Charge]) -> Population:
    """The clients with what charges left of their promises.

    Raises:
        BudgetExceededError: of a client nothing is left.

    Example:
        >>> people = Population.from_arrays(ids=["north"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> paid = Charge(what="tuning", id="", private=False, spent={"north": (0.25, 5e-6)})
        >>> after_charges(people, [paid]).epsilon.tolist()
        [0.75]
    """
    if not charges:
        return population
    gone = charged_out(population, charges)
    if gone:
        raise BudgetExceededError(nothing_left(gone))
    epsilon, delta = population.epsilon.copy(), population.delta.copy()
    for k in np.flatnonzero(~population.public).tolist():
        paid = charged_to(charges, population.ids[k])
        epsilon[k] = left(float(epsilon[k]), paid[0])
        delta[k] = left(float(delta[k]), paid[1])
    return replace(population, epsilon=epsilon, delta=delta)


def private_clients(population: Population) -> Iterator[tuple[int, str, float, float]]:
    """Position, id and promised epsilon and delta of each client that has a budget.

    Example:
        >>> people = Population.from_arrays(ids=["north"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> list(private_clients(people))
        [(0, 'north', 1.0, 1e-05)]
    """
    for k in np.flatnonzero(~population.public).tolist():
        yield k, population.ids[k], float(population.epsilon[k]), float(population.delta[k])


def charged_out(population: Population, charges: Sequence[Charge]) -> dict[str, str]:
    """Clients of whose promise charges alone left nothing, by id, with the reason in words.

    Example:
        >>> people = Population.from_arrays(ids=["north"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> paid = Charge(what="tuning", id="", private=False, spent={"north": (1.25, 5e-6)})
        >>> charged_out(people, [paid])["north"]
        'north: promised epsilon 1 at delta 1e-05, has spent 1.25 at 5e-06 before any training: ...'
    """
    found = {}
    for _, name, *promised in private_clients(population):
        paid = charged_to(charges, name)
        if any(left(*pair) < LEAST_LEFT * pair[0] for pair in zip(promised, paid, strict=True)):
            found[name] = (
                f"{one_line(name)}: promised epsilon {promised[0]:.4g} at delta {promised[1]:g}, "
                f"has spent {paid[0]:.4g} at {paid[1]:g} before any training: on an estimate of "
                "bounds, or on tuning"
            )
    return found


def past_of(before: Sequence[Segment], client: str) -> History:
    """All that a client did in earlier runs.

    Example:
        >>> past_of((), "north").steps
        0
    """
    return History(
        tuple(e for segment in before for e in segment.spent.get(client, History()).events)
    )


def left_epsilon(history: History, *, epsilon: float, delta: float) -> float:
    """About the budget of a fresh client that could do as much as this one still can.

    By the parameter µ of Gaussian mechanisms, whose squares add up. It is what a selection weighs;
    noise is calibrated to the composed history itself. 0 where nothing is left.

    Example:
        >>> past = History((Event(noise_multiplier=20.0, sampling_rate=1.0, steps=100),))
        >>> round(past.epsilon(1e-5), 2), round(left_epsilon(past, epsilon=4.0, delta=1e-5), 2)
        (1.99, 3.28)
    """
    spent = history.epsilon(delta)
    if spent >= epsilon:
        return 0.0
    whole, used = (gaussian_mu(epsilon=value, delta=delta) for value in (epsilon, spent))
    return min(epsilon, gaussian_epsilon(max(0.0, whole**2 - used**2) ** 0.5, delta))


def left_population(population: Population, before: Sequence[Segment]) -> Population:
    """The clients with what is left of their budgets.

    Raises:
        BudgetExceededError: of a client nothing is left, or nothing was ever promised for records
            that it used as a public one; all are named.

    Example:
        >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
        >>> left_population(people, ()) is people
        True
    """
    if not before:
        return population
    exhausted = exhausted_clients(population, before)
    if exhausted:
        raise BudgetExceededError(nothing_left(exhausted))
    epsilon = population.epsilon.copy()
    for k, name, promised, delta in private_clients(population):
        history = past_of(before, name)
        if history.steps:
            epsilon[k] = left_epsilon(history, epsilon=promised, delta=delta)
    return replace(population, epsilon=epsilon)


def nothing_left(exhausted: Mapping[str, str]) -> str:
    r"""Clients that cannot go on in a sentence, and a line for each of the first.

    Example:
        >>> nothing_left({"north": "north: has spent all"})
        '1 client has nothing left to go on with:\n  north: has spent all'
    """
    count, shown = len(exhausted), list(exhausted.values())[:_MOST_NAMED]
    more = [f"... and {count - _MOST_NAMED} more"] if count > _MOST_NAMED else []
    return (
        f"{count} {'client has' if count == 1 else 'clients have'} nothing left to go on "
        "with:\n" + "\n".join(f"  {words}" for words in (*shown, *more))
    )


def exhausted_clients(population: Population, before: Sequence[Segment]) -> dict[str, str]:
    """Clients that cannot go on, by id, with the reason in words and numbers.

    Example:
        >>> people = Population.from_arrays(ids=["north"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> past = History((Event(noise_multiplier=20.0, sampling_rate=1.0, steps=100),))
        >>> first = Segment(plan="", ledger="", rounds=100, source="seed", spent={"north": past})
        >>> exhausted_clients(people, [first])["north"]
        'north: promised epsilon 1 at delta 1e-05, has spent 1.993: 0.9931 too much'
    """
    found = {}
    bare = {name for segment in before for name in segment.without_noise}
    for _, name, epsilon, delta in private_clients(population):
        history, shown = past_of(before, name), one_line(name)
        if name in bare:
            found[name] = (
                f"{shown}: took part as a public client, without noise; no epsilon can be promised "
                "for its records now"
            )
        elif history.steps and left_epsilon(history, epsilon=epsilon, delta=delta) < (
            LEAST_LEFT * epsilon
        ):
            spent = history.epsilon(delta)
            over = f"{spent - epsilon:.4g} too much" if spent > epsilon else "all but nothing left"
            found[name] = (
                f"{shown}: promised epsilon {epsilon:.4g} at delta {delta:g}, has spent "
                f"{spent:.4g}: {over}"
            )
    return found


def check_contract(before: Sequence[Segment], contract: Contract, cohort_size: int) -> None:
    """Refuse a past that has no total under this contract.

    There is none under another neighbouring relation, nor where clients counted on more honest
    members than they do now: what they spent was bounded by noise that they no longer trust in.

    Args:
        before: earlier runs.
        contract: of the run to come.
        cohort_size: its K.

    Example:
        >>> check_contract((), Contract(trust="pooled", colluding=1), 4)
    """
    neighbours = contract.neighbours
    for segment in before:
        for name, history in segment.spent.items():
            if history.steps and history.neighbours != neighbours:
                raise InputError.because(
                    f"{name!r} has a history under {history.neighbours} and the plan is under "
                    f"{neighbours}: they have no common total. Keep the contract of the run."
                )
        honest = contract.honest(cohort_size)
        if segment.honest > honest and any(history.steps for history in segment.spent.values()):
            raise InputError(
                f"honest members of a cohort of {cohort_size}, trust {contract.trust!r}",
                given=honest,
                allowed=f"at least {segment.honest}, as an earlier run counted on: with fewer, its "
                "clients have spent more than was certified",
                next_step="Keep the trust of the run, or one that counts on as many; else begin a "
                "new run, with a budget of its own.",
            )

# SPDX-License-Identifier: Apache-2.0
"""What clients spent in earlier runs that a plan goes on from, and what is left of their budgets.

What was paid beside the rounds of runs is in :mod:`.charges`.

A *segment* is one earlier run: its plan, its ledger, and the events of each client that the ledger
counts. Segments stay in a chain for good, also the events of clients that left: a client that comes
back, or anybody under its id, finds what was spent under it.

What a client spent is composed with what it will do, as in :mod:`.events`, so the totals hold where
who leaves, joins or changes is not decided from what the training gave out. A record's history is
at most its client's: a record that came later was in fewer steps, and steps without it tell nothing
about it. So the client's total is charged to all of its records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from dpcohort._validate import choice, whole_number
from dpcohort.accounting._charges import LEAST_LEFT, nothing_left, private_clients
from dpcohort.accounting._closed_forms import gaussian_mu
from dpcohort.accounting._contract import Contract
from dpcohort.accounting._events import Event, History, gaussian_epsilon
from dpcohort.accounting._unit import unit_of
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.plain_text import one_line

#: Where a run's noise came from: a private stream, a seed, or floating-point numbers of a generator
#: filled with entropy, as runs on one machine had before their noise was on a lattice.
Source = Literal["private", "seed", "floating point"]


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
        unit: of privacy, by name.

    Example:
        >>> event = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=50)
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
    unit: str = "record"

    def __post_init__(self) -> None:
        whole_number("before.rounds", self.rounds, at_least=0)
        choice("before.source", self.source, get_args(Source))
        whole_number("before.honest", self.honest, at_least=1)

    def if_alone(self) -> Segment:
        """What its clients must count if all others collude: the noise of their own shares.

        Example:
            >>> event = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=50)
            >>> first = Segment(plan="", ledger="", rounds=50, source="seed", honest=4,
            ...                 spent={"north": History((event,))})
            >>> first.if_alone().spent["north"].events[0].mechanism.noise_multiplier
            1.0
        """
        if self.honest == 1:
            return self
        root = math.sqrt(self.honest)
        spent = {
            name: History(
                tuple(
                    event.changed(noise_multiplier=event.mechanism.noise_multiplier / root)
                    for event in h.events
                )
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
        if self.honest == 1:
            del plain["honest"]
        if self.unit == "record":
            del plain["unit"]
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
            unit=unit_of(values.get("unit", "record")).name,
        )


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
        >>> past = History((Event.of(noise_multiplier=20.0, sampling_rate=1.0, steps=100),))
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


def exhausted_clients(population: Population, before: Sequence[Segment]) -> dict[str, str]:
    """Clients that cannot go on, by id, with the reason in words and numbers.

    Example:
        >>> people = Population.from_arrays(ids=["north"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> past = History((Event.of(noise_multiplier=20.0, sampling_rate=1.0, steps=100),))
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

    There is none under another neighbouring relation or for another unit, nor where clients assumed
    more honest members than they do now: what they spent was bounded by noise that they no longer
    trust in.

    Args:
        before: earlier runs.
        contract: of the run to come.
        cohort_size: its K.

    Example:
        >>> check_contract((), Contract(trust="distributed", colluding=1), 4)
    """
    neighbours = contract.neighbours
    for segment in before:
        if segment.unit != contract.unit.name:
            raise InputError.because(
                f"an earlier run protects a {segment.unit} and the plan a {contract.unit}: they "
                "have no common total. Keep the contract of the run."
            )
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

# SPDX-License-Identifier: Apache-2.0
"""What clients spent before the rounds of a plan: earlier runs, and charges beside them.

``Past.none`` is a past like any other: its histories are empty and it leaves every budget whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpcohort._validate import BoolArray
from dpcohort.accounting import Charge, Contract, History, Paid, Segment
from dpcohort.accounting._charges import check_relation
from dpcohort.accounting._segments import Source, check_contract, left_population, past_of
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.plain_text import counted
from dpcohort.planning._participation import refuse_clients

if TYPE_CHECKING:
    from dpcohort.plan import Plan


@dataclass(frozen=True)
class Past:
    """Charges that were paid beside the rounds of any run; there were no runs before.

    Attributes:
        paid: whole promises and all charges; the population of a plan has what they left.

    Example:
        >>> Past.none.history("north").steps, Past.none.rounds
        (0, 0)
    """

    none: ClassVar[Past]
    #: Whether a mod of Flower can keep a plan with it.
    is_simple: ClassVar[bool] = True
    #: Why the page of a report cannot solve the selection again; empty where it can.
    no_explorer: ClassVar[str] = ""

    paid: Paid = field(default_factory=Paid)

    @classmethod
    def of(cls, segments: Sequence[Segment], paid: Paid | None = None) -> Past:
        """The past of these earlier runs, oldest first, and of what was paid beside them."""
        paid = Paid() if paid is None else paid
        return Continued(paid=paid, segments=tuple(segments)) if segments else Past(paid)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """One for each earlier run, oldest first."""
        return ()

    def last(self, otherwise: str) -> Segment:
        """The run that a plan continues.

        Args:
            otherwise: what is wrong if it continues none.

        Raises:
            InputError: it continues none.
        """
        raise InputError.because(otherwise)

    def refuse_beginning(self) -> None:
        """Refuse a training that begins anew though budgets were spent in earlier runs."""
        return

    def refuse_seeds(self) -> None:
        """Refuse to train several times what may be spent once."""
        return

    def source(self, own: Source, later: Sequence[Charge] = ()) -> Source:
        """The least private source of noise of a run, the runs before it and all charges.

        Args:
            own: of the run itself.
            later: charges after the plan was made.
        """
        sources = {own, *(segment.source for segment in self.segments)}
        if not all(charge.private for charge in (*self.paid.charges, *later)):
            sources.add("seed")
        order: tuple[Source, ...] = ("seed", "floating point", "private")
        return next(one for one in order if one in sources)

    @property
    def rounds(self) -> int:
        """Rounds of all runs together."""
        return sum(segment.rounds for segment in self.segments)

    def sentences(self) -> list[str]:
        """What a summary says of the runs before."""
        return []

    def history(self, client: str) -> History:
        """All events of a client in these runs."""
        return past_of(self.segments, client)

    def histories(self, population: Population) -> tuple[History, ...]:
        """All events of each client of a population; empty where there were no runs at all."""
        return ()

    def spent_by(self, population: Population) -> BoolArray:
        """Clients with a budget that took part in one of these runs."""
        return np.zeros(len(population), dtype=np.bool_)

    def left(self, population: Population) -> Population:
        """The clients with what these runs left of their budgets.

        Raises:
            BudgetExceededError: of a client nothing is left; all such are named.
        """
        return left_population(population, self.segments)

    def epsilon_of_terms(self, plan: Plan, client: int) -> float:
        """The epsilon that terms of a plan's own rounds state for the client at a position."""
        return float(plan.population.epsilon[client])

    def check(self, population: Population, contract: Contract, cohort_size: int) -> None:
        """Refuse a past that has no total under a contract, or clients that were public in it."""
        check_contract(self.segments, contract, cohort_size)
        check_relation(self.paid.charges, contract)
        self.paid.check(population)

    def if_alone(self) -> Past:
        """The same as each client must count it if all others collude."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a plan's file has them."""
        return {"runs": [one.to_dict() for one in self.segments], "paid": self.paid.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Past:
        """The past from :meth:`to_dict`."""
        runs = tuple(map(Segment.from_dict, values["runs"]))
        return cls.of(runs, Paid.from_dict(values["paid"]))


@dataclass(frozen=True)
class Continued(Past):
    """Earlier runs that a plan continues, and charges.

    Attributes:
        segments: one for each earlier run, oldest first.
        paid: whole promises and all charges; the population of a plan has what they left.
    """

    is_simple: ClassVar[bool] = False
    no_explorer: ClassVar[str] = (
        "This plan goes on from an earlier run, and its clients have what that left of their "
        "budgets; the explorer knows whole ones. Use dpcohort replan."
    )

    segments: tuple[Segment, ...] = ()

    def last(self, otherwise: str) -> Segment:
        """The run that a plan continues."""
        return self.segments[-1]

    def refuse_beginning(self) -> None:
        """Refuse a training that begins anew."""
        raise InputError.because(
            "the plan goes on from an earlier run, whose model and ledger are needed. Say which: "
            "--after RUN (in Python after=RUN)."
        )

    def refuse_seeds(self) -> None:
        """Refuse to train several times what may be spent once."""
        raise InputError.because(
            "a plan that goes on from a run is trained once: several seeds would spend what is "
            "left several times. Use one seed."
        )

    def sentences(self) -> list[str]:
        """How many runs and rounds every epsilon covers."""
        runs, rounds = counted(len(self.segments), "run"), counted(self.rounds, "round")
        return [
            f"goes on after {runs} with {rounds}, which count: every ε is for all of them together"
        ]

    def histories(self, population: Population) -> tuple[History, ...]:
        """All events of each client of a population."""
        return tuple(map(self.history, population.ids))

    def spent_by(self, population: Population) -> BoolArray:
        """Clients with a budget that took part in one of these runs."""
        took_part = [history.steps > 0 for history in self.histories(population)]
        return np.array(took_part, dtype=np.bool_) & ~population.public

    def epsilon_of_terms(self, plan: Plan, client: int) -> float:
        """What these rounds spend by themselves; the runs before have terms of their own."""
        alone = plan.events(client, draws=int(plan.counts[client]), reports=0)
        delta = float(plan.population.delta[client])
        epsilon = alone.epsilon(delta)
        while alone.delta(epsilon) > delta:  # terms are closed this way round
            epsilon *= 1.0001
        return epsilon

    def check(self, population: Population, contract: Contract, cohort_size: int) -> None:
        """Refuse a past that has no total under a contract, or clients that were public in it."""
        super().check(population, contract, cohort_size)
        bare = {name for segment in self.segments for name in segment.without_noise}
        here = np.array([name in bare for name in population.ids], dtype=np.bool_)
        refuse_clients(
            population, here & ~population.public, "has a budget, and was a public one before"
        )

    def if_alone(self) -> Past:
        """The same as each client must count it if all others collude."""
        return replace(self, segments=tuple(one.if_alone() for one in self.segments))


Past.none = Past()

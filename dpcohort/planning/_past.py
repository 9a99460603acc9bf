# SPDX-License-Identifier: Apache-2.0
"""What clients spent before the rounds of a plan: earlier runs, and charges beside them.

``Past.none`` is a past like any other: its histories are empty and it leaves every budget whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dpcohort._validate import BoolArray
from dpcohort.accounting import Charge, Contract, History, Paid, Segment
from dpcohort.accounting._charges import check_relation
from dpcohort.accounting._segments import Source, check_contract, left_population, past_of
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.planning._participation import refuse_clients


@dataclass(frozen=True)
class Past:
    """Earlier runs that a plan continues, and what was paid beside the rounds of any run.

    Attributes:
        segments: one for each earlier run, oldest first.
        paid: whole promises and all charges; the population of a plan has what they left.

    Example:
        >>> Past.none.history("north").steps, Past.none.rounds
        (0, 0)
    """

    none: ClassVar[Past]

    segments: tuple[Segment, ...] = ()
    paid: Paid = field(default_factory=Paid)

    @property
    def is_simple(self) -> bool:
        """Whether a mod of Flower can keep a plan with it."""
        return not self.segments

    @property
    def no_explorer(self) -> str:
        """Why the page of a report cannot solve the selection again; empty where it can."""
        if not self.segments:
            return ""
        return (
            "This plan goes on from an earlier run, and its clients have what that left of their "
            "budgets; the explorer knows whole ones. Use dpcohort replan."
        )

    def last(self, otherwise: str) -> Segment:
        """The run that a plan continues.

        Args:
            otherwise: what is wrong if it continues none.

        Raises:
            InputError: it continues none.
        """
        if not self.segments:
            raise InputError.because(otherwise)
        return self.segments[-1]

    def refuse_beginning(self) -> None:
        """Refuse a training that begins anew though budgets were spent in earlier runs."""
        if self.segments:
            raise InputError.because(
                "the plan goes on from an earlier run, whose model and ledger are needed. Say "
                "which: --after RUN (in Python after=RUN)."
            )

    def refuse_seeds(self) -> None:
        """Refuse to train several times what may be spent once."""
        if self.segments:
            raise InputError.because(
                "a plan that goes on from a run is trained once: several seeds would spend what is "
                "left several times. Use one seed."
            )

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

    def history(self, client: str) -> History:
        """All events of a client in these runs."""
        return past_of(self.segments, client)

    def histories(self, population: Population) -> tuple[History, ...]:
        """All events of each client of a population; empty where there were no runs at all."""
        return tuple(map(self.history, population.ids)) if self.segments else ()

    def spent_by(self, population: Population) -> BoolArray:
        """Clients with a budget that took part in one of these runs."""
        if not self.segments:
            return np.zeros(len(population), dtype=np.bool_)
        took_part = [history.steps > 0 for history in self.histories(population)]
        return np.array(took_part, dtype=np.bool_) & ~population.public

    def left(self, population: Population) -> Population:
        """The clients with what these runs left of their budgets.

        Raises:
            BudgetExceededError: of a client nothing is left; all such are named.
        """
        return left_population(population, self.segments)

    def check(self, population: Population, contract: Contract, cohort_size: int) -> None:
        """Refuse a past that has no total under a contract, or clients that were public in it."""
        check_contract(self.segments, contract, cohort_size)
        check_relation(self.paid.charges, contract)
        self.paid.check(population)
        bare = {name for segment in self.segments for name in segment.without_noise}
        if bare:
            here = np.array([name in bare for name in population.ids], dtype=np.bool_)
            refuse_clients(
                population, here & ~population.public, "has a budget, and was a public one before"
            )

    def if_alone(self) -> Past:
        """The same as each client must count it if all others collude."""
        return replace(self, segments=tuple(one.if_alone() for one in self.segments))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a plan's file has them."""
        return {"runs": [one.to_dict() for one in self.segments], "paid": self.paid.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Past:
        """The past from :meth:`to_dict`."""
        return cls(tuple(map(Segment.from_dict, values["runs"])), Paid.from_dict(values["paid"]))


Past.none = Past()

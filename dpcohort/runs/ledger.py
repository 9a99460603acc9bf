# SPDX-License-Identifier: Apache-2.0
"""The ledger: every draw of every client, counted on disk before its noise is drawn.

What is not in the ledger was not computed; what is in it counts as spent, even if a crash lost the
result. A round is counted once. A seeded simulation that resumes computes the very same update
again, which tells nothing new; with the operating system's entropy it would be a new release, so a
counted round is never computed again there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.errors import BudgetExceededError, VerificationError
from dpcohort.plan import Plan
from dpcohort.runs.ledger_file import LedgerFile, first_line, read_ledger_file

__all__ = ["Ledger", "ledger_header", "planned_draws"]


def ledger_header(plan: Plan) -> dict[str, Any]:
    """The first line: what the draws counted below it are draws of."""
    return first_line(plan, format="dpcohort ledger")


def planned_draws(plan: Plan, round: int) -> dict[str, int]:
    """How often the schedule draws each client in one round, by id.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=2, cohort_size=3, batch_size=9), seed=0)
        >>> planned_draws(plan, 1)
        {'client-0': 3}
    """
    counts = Counter(plan.schedule.cohorts[round].tolist())
    return {plan.population.ids[client]: count for client, count in sorted(counts.items())}


class Ledger:
    """Counts draws, in memory or in a file.

    Args:
        plan: whose draws.
        path: the file; None keeps the ledger in memory.
    """

    def __init__(self, plan: Plan, path: Path | None = None) -> None:
        self._plan = plan
        self._rounds: set[int] = set()
        self._draws = np.zeros(len(plan.population), dtype=np.int64)
        self._log = LedgerFile(path, ledger_header(plan), self._accept)

    @classmethod
    def read(cls, plan: Plan, path: Path) -> Ledger:
        """The ledger in a file, for looking at it; nothing can be counted in the file through it.

        Raises:
            VerificationError: it is not this plan's, or a line is not what the plan says.
        """
        ledger = cls(plan)
        read_ledger_file(path, ledger_header(plan), ledger._accept)
        return ledger

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds counted."""
        return frozenset(self._rounds)

    @property
    def draws(self) -> IntArray:
        """Draws counted so far, by position of the client."""
        return self._draws.copy()

    def cohort(self, round: int) -> IntArray:
        """The draws of a round, as positions of clients."""
        return np.asarray(self._plan.schedule.cohorts[round])

    def count(self, round: int) -> None:
        """Count the draws of a round; when this returns they are on disk.

        Raises:
            BudgetExceededError: the round was counted before; nothing was written.
        """
        if round in self._rounds:
            raise BudgetExceededError(
                f"round {round} is in the ledger already; computing it again would spend its "
                "clients' budgets twice."
            )
        self._log.append(_line(self._plan, round))
        self._add(round)

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def _accept(self, entry: dict[str, Any]) -> None:
        """Count a round that was counted before."""
        round = entry.get("round")
        # Not isinstance: JSON's true is an int to Python, but not the number of a round.
        if type(round) is not int or not self._is_new(round, entry):
            raise VerificationError("not a round of the plan, or counted twice.")
        self._add(round)

    def _is_new(self, round: int, entry: dict[str, Any]) -> bool:
        if round in self._rounds or not 0 <= round < self._plan.training.rounds:
            return False
        return entry == _line(self._plan, round)

    def _add(self, round: int) -> None:
        self._rounds.add(round)
        np.add.at(self._draws, self._plan.schedule.cohorts[round], 1)


def _line(plan: Plan, round: int) -> dict[str, Any]:
    return {"round": round, "draws": planned_draws(plan, round)}

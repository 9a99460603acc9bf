# SPDX-License-Identifier: Apache-2.0
"""The ledger: every draw of every client, counted on disk before its noise is drawn.

What is not in the ledger was not computed; what is in it counts as spent, even if a crash lost the
result. A round is counted once. A seeded simulation that resumes computes the very same update
again, which tells nothing new; with the operating system's entropy it would be a new release, so a
counted round is never computed again there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.errors import BudgetExceededError, VerificationError
from dpcohort.plan import Plan
from dpcohort.runs.append_log import AppendLog, read_log

__all__ = ["Ledger", "ledger_header", "planned_draws"]

_FORMAT = "dpcohort ledger"


def ledger_header(plan: Plan) -> dict[str, Any]:
    """The first line: what the draws counted below it are draws of."""
    return {
        "format": _FORMAT,
        "schema": 1,
        "plan": plan.sha256,
        "local_steps": plan.training.local_steps,
        "sampler": plan.contract.sampler,
        "neighbours": plan.contract.neighbours,
    }


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
        self._log: AppendLog | None = None
        if path is not None:
            # Two processes that count the same round would each compute it.
            self._log = AppendLog(path, exclusive=True)
            try:
                if entries := read_log(path):
                    self._take_over(path, entries)
                else:
                    self._log.append(ledger_header(plan))
            except BaseException:
                self.close()
                raise

    @classmethod
    def read(cls, plan: Plan, path: Path) -> Ledger:
        """The ledger in a file, for looking at it; nothing can be counted in the file through it.

        Raises:
            VerificationError: it is not this plan's, or a line is not what the plan says.
        """
        ledger = cls(plan)
        entries = read_log(path)
        if not entries:
            raise VerificationError(f"{path} has no first line: it is not a whole ledger.")
        ledger._take_over(path, entries)
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
        if self._log is not None:
            self._log.append({"round": round, "draws": planned_draws(self._plan, round)})
        self._add([round])

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()

    def _take_over(self, path: Path, entries: list[dict[str, Any]]) -> None:
        if entries[0] != ledger_header(self._plan):
            raise VerificationError(
                f"{path} is the ledger of another plan ({str(entries[0].get('plan'))[:16]}... "
                f"instead of {self._plan.sha256[:16]}...). Resume with the plan of the run."
            )
        for line, entry in enumerate(entries[1:], start=2):
            round = entry.get("round")
            if not isinstance(round, int) or not self._is_new(round, entry):
                raise VerificationError(
                    f"{path}, line {line}: not a round of the plan, or counted twice. "
                    "See: dpcohort verify"
                )
            self._add([round])

    def _is_new(self, round: int, entry: dict[str, Any]) -> bool:
        if round in self._rounds or not 0 <= round < self._plan.training.rounds:
            return False
        return entry == {"round": round, "draws": planned_draws(self._plan, round)}

    def _add(self, rounds: Iterable[int]) -> None:
        for round in rounds:
            self._rounds.add(round)
            np.add.at(self._draws, self._plan.schedule.cohorts[round], 1)

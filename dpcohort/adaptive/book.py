# SPDX-License-Identifier: Apache-2.0
"""The book of an adaptive training: reports counted before they are made, answers, and cohorts.

Every entry goes to ``listener`` before it takes effect, so a ledger on disk knows of a report
before anything is computed for it. The same entries, played back, make the same book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.view import Report
from dpcohort.errors import BudgetExceededError, VerificationError

__all__ = ["Book", "Listener"]

Listener = Callable[[Mapping[str, Any]], None]


class Book:
    """What was asked, answered and chosen so far.

    Args:
        plan: whose caps are kept.
        listener: told every new entry before it takes effect; it may refuse by raising.

    Example:
        >>> from dpcohort import Population, Training
        >>> from dpcohort.adaptive.plan import make_adaptive_plan
        >>> people = Population.from_arrays(sizes=[90] * 4, epsilon=[2.0] * 4, delta=1e-5)
        >>> plan = make_adaptive_plan(people, Training(rounds=2, cohort_size=1, batch_size=9),
        ...                           seed=0)
        >>> book = Book(plan)
        >>> book.count_reports(0, [0, 2])
        >>> book.reports_left.tolist()
        [1, 2, 1, 2]
    """

    def __init__(self, plan: AdaptivePlan, listener: Listener | None = None) -> None:
        self._plan, self._listener = plan, listener
        self._draws = np.zeros(len(plan.population), dtype=np.int64)
        self._asked = np.zeros(len(plan.population), dtype=np.int64)
        self._counted: dict[int, dict[int, int]] = {}
        self._answers: dict[int, dict[int, float]] = {}
        self._reports: list[Report] = []
        self._latest = -1  # the last round of which anything is in the book
        self._cohorts: dict[int, IntArray] = {}

    @property
    def draws(self) -> IntArray:
        """Draws chosen so far, by position of the client."""
        return self._draws.copy()

    @property
    def reports_made(self) -> IntArray:
        """Reports counted so far, by position of the client."""
        return self._asked.copy()

    @property
    def draws_left(self) -> IntArray:
        """How often each client may still be drawn."""
        return self._plan.caps.draws - self._draws

    @property
    def reports_left(self) -> IntArray:
        """How often each client may still be asked."""
        return self._plan.caps.reports - self._asked

    def left_before(self, round: int, *, repeats: bool) -> tuple[IntArray, IntArray]:
        """Draws and reports that were left when a round began, whatever has happened since.

        Args:
            round: the round.
            repeats: whether a report of this round that a crash left unanswered is made again as
                the very same one; otherwise it is spent.
        """
        if self._latest < round:  # as always, unless a run goes on or is looked at again
            return self.draws_left, self.reports_left
        draws, reports = self._plan.caps.draws.copy(), self._plan.caps.reports.copy()
        for earlier, cohort in self._cohorts.items():
            if earlier < round:
                np.subtract.at(draws, cohort, 1)
        for earlier, times in self._counted.items():
            for k, count in times.items():
                if earlier < round:
                    reports[k] -= count
                elif earlier == round and not repeats:
                    reports[k] -= count - (k in self._answers.get(round, {}))
        return draws, reports

    def listen(self, listener: Listener) -> None:
        """Tell every new entry to this listener from now on."""
        self._listener = listener

    def counted(self, round: int) -> set[int]:
        """Clients whose report of a round is counted, answered or not."""
        return set(self._counted.get(round, {}))

    def answers(self, round: int) -> dict[int, float]:
        """The reports of a round, by position."""
        return dict(self._answers.get(round, {}))

    def cohort(self, round: int) -> IntArray | None:
        """Who was chosen for a round; None if that is not decided."""
        return self._cohorts.get(round)

    def reports_before(self, round: int) -> tuple[Report, ...]:
        """All reports of earlier rounds, oldest first."""
        if self._latest < round:
            return tuple(self._reports)
        return tuple(report for report in self._reports if report.round < round)

    def cohorts_before(self, round: int) -> tuple[IntArray, ...]:
        """The cohorts of earlier rounds, oldest first."""
        return tuple(self._cohorts[t] for t in sorted(self._cohorts) if t < round)

    def count_reports(self, round: int, clients: Iterable[int]) -> None:
        """Charge reports, before they are computed.

        Raises:
            BudgetExceededError: one is at its cap; nothing was counted.
        """
        asked = [int(k) for k in clients]
        left = self.reports_left
        for k in asked:
            if left[k] < 1 or asked.count(k) > 1:
                raise BudgetExceededError(
                    f"{self._plan.population.ids[k]!r} has made {int(self._asked[k])} of "
                    f"{int(self._plan.caps.reports[k])} reports; one more is not in its noise."
                )
        if asked:
            self._enter({"round": round, "reports": [self._plan.population.ids[k] for k in asked]})

    def keep_answers(self, round: int, answers: Mapping[int, float]) -> None:
        """Write answers down; raw ones stay in memory, for they carry no noise."""
        if not answers:
            return
        ids = self._plan.population.ids
        values = {ids[k]: float(value) for k, value in sorted(answers.items())}
        entry = {"round": round, "answers": values}
        if self._plan.has_raw_reports:
            self._apply(entry)
        else:
            self._enter(entry)

    def choose(self, round: int, cohort: IntArray) -> None:
        """Fix the cohort of a round and charge its draws.

        Raises:
            BudgetExceededError: a client would be drawn beyond its cap; nothing was counted.
        """
        counts = np.bincount(cohort, minlength=self._draws.size)
        over = np.flatnonzero(counts > self.draws_left)
        if over.size:
            k = int(over[0])
            raise BudgetExceededError(
                f"{self._plan.population.ids[k]!r} was drawn {int(self._draws[k])} of "
                f"{int(self._plan.caps.draws[k])} times; {int(counts[k])} more are not in its "
                "noise."
            )
        if round in self._cohorts:
            raise BudgetExceededError(f"the cohort of round {round} is chosen already.")
        names = [self._plan.population.ids[k] for k in cohort.tolist()]
        self._enter({"round": round, "cohort": names})

    def replay(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Take over entries that were written before; the listener is not told.

        Raises:
            VerificationError: an entry is not one of this plan, or beyond a cap.
        """
        for number, entry in enumerate(entries, start=1):
            try:
                self._apply(entry)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise VerificationError(
                    f"entry {number} of the book is not one of this plan ({error!r})."
                ) from None
        if (self.reports_left < 0).any() or (self.draws_left < 0).any():
            k = int(np.flatnonzero((self.reports_left < 0) | (self.draws_left < 0))[0])
            raise VerificationError(f"{self._plan.population.ids[k]!r} is beyond its cap.")

    def _enter(self, entry: Mapping[str, Any]) -> None:
        if self._listener is not None:
            self._listener(entry)
        self._apply(entry)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        round, place = int(entry["round"]), self._plan.population.index_of
        self._latest = max(self._latest, round)
        if "reports" in entry:
            positions = [place(name) for name in entry["reports"]]
            times = self._counted.setdefault(round, {})
            for k in positions:
                times[k] = times.get(k, 0) + 1
                self._asked[k] += 1
        elif "answers" in entry:
            found = {place(name): float(value) for name, value in entry["answers"].items()}
            self._answers.setdefault(round, {}).update(found)
            self._reports.extend(Report(round, k, value) for k, value in sorted(found.items()))
        else:
            cohort = np.array([place(name) for name in entry["cohort"]], dtype=np.int64)
            cohort.setflags(write=False)
            self._cohorts[round] = cohort
            np.add.at(self._draws, cohort, 1)

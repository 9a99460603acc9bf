# SPDX-License-Identifier: Apache-2.0
"""The journal of a run: every draw and every report, counted on disk before it is computed.

What is not in the journal was not computed; what is in it counts as spent, even if a crash lost the
result. A round is counted once. A seeded simulation that resumes computes the very same update
again, which tells nothing new; with the operating system's entropy it would be a new release, so a
counted round is never computed again there.

``ledger.jsonl`` is the journal on disk: a first line that names the plan, and below it a line for
each round. Where cohorts are chosen during the training, three kinds of line follow the first:
``reports`` names clients before anything is computed for their reports; ``answers`` are the noisy
numbers they gave, so that a run that goes on comes to the same cohorts; ``cohort`` names the draws
of a round before they are computed. Raw answers are never written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive import Report, RoundView
from dpcohort.errors import BudgetExceededError, VerificationError
from dpcohort.plan import Plan
from dpcohort.runs._folder import append_line, open_log, read_log


def journal_header(plan: Plan) -> dict[str, Any]:
    """The first line: what is counted below it, under which sampler and neighbours.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=2, cohort_size=3, batch_size=9), seed=0)
        >>> list(journal_header(plan))
        ['format', 'schema', 'plan', 'local_steps', 'sampler', 'neighbours']
    """
    rule = plan.participation.header()
    return {
        "format": rule.pop("format"),
        "schema": 1,
        "plan": plan.sha256,
        "local_steps": plan.training.local_steps,
        "sampler": plan.contract.sampler.name,
        "neighbours": plan.contract.neighbours,
        **rule,
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
    draws: dict[str, int] = plan.participation.entry(
        round, plan.schedule.cohorts[round], plan.population.ids
    )["draws"]
    return draws


class Journal:
    """Counts draws and reports, in memory or in a file that no other process may count in.

    Args:
        plan: whose draws and reports.
        path: the file; None keeps the journal in memory. A file found there is taken over.

    Raises:
        InputError: another process is counting in the file, or it cannot be written.
        VerificationError: it is the journal of another plan, or a line is not what the plan says.

    Example:
        >>> from dpcohort import Population, Training
        >>> from dpcohort.adaptive import make_adaptive_plan
        >>> people = Population.from_arrays(sizes=[90] * 4, epsilon=[2.0] * 4, delta=1e-5)
        >>> plan = make_adaptive_plan(people, Training(rounds=2, cohort_size=1, batch_size=9),
        ...                           seed=0)
        >>> journal = Journal(plan)
        >>> journal.count_reports(0, [0, 2])
        >>> journal.count(0, np.array([2]))
        >>> journal.reports.tolist(), journal.draws.tolist()
        ([1, 0, 1, 0], [0, 0, 1, 0])
    """

    def __init__(self, plan: Plan, path: Path | None = None) -> None:
        self._plan = plan
        self._draws: Counter[int] = Counter()
        self._reports: Counter[int] = Counter()
        self._cohorts: dict[int, IntArray] = {}
        self._asked: dict[int, Counter[int]] = {}  # counted reports of each round, by client
        self._answers: dict[int, dict[int, float]] = {}
        self._history: list[Report] = []
        self._latest = -1  # the last round of which anything is counted
        self._log: FileIO | None = None
        if path is not None:
            # Two processes that count the same round would each compute it.
            self._log = open_log(path, exclusive=True)
            try:
                if found := read_log(path):
                    self._take_over(path, found)
                else:
                    append_line(self._log, journal_header(plan))
            except BaseException:
                self.close()
                raise

    @classmethod
    def read(cls, plan: Plan, path: Path) -> Journal:
        """The journal in a file, for looking at it; nothing can be counted in the file through it.

        Raises:
            DataMissingError: there is no such file.
            VerificationError: it is not this plan's, or a line is not what the plan says.
        """
        journal = cls(plan)
        found = read_log(path)
        if not found:
            raise VerificationError(f"{path} has no first line: it is not a whole ledger.")
        journal._take_over(path, found)
        return journal

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds whose draws are counted."""
        return frozenset(self._cohorts)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is counted yet."""
        return self._latest < 0

    @property
    def draws(self) -> IntArray:
        """Draws counted so far, by position of the client."""
        return self._column(self._draws)

    @property
    def reports(self) -> IntArray:
        """Reports counted so far, by position of the client."""
        return self._column(self._reports)

    def cohort(self, round: int) -> IntArray | None:
        """The counted draws of a round, as positions of clients; None if it is not counted."""
        return self._cohorts.get(round)

    def asked(self, round: int) -> set[int]:
        """Clients whose report of a round is counted, answered or not."""
        return set(self._asked.get(round, {}))

    def answers(self, round: int) -> dict[int, float]:
        """The reports of a round, by position."""
        return dict(self._answers.get(round, {}))

    def count(self, round: int, cohort: IntArray) -> None:
        """Count the draws of a round; when this returns they are on disk.

        Raises:
            BudgetExceededError: the round was counted before, or a client would be drawn beyond
                its cap; nothing was written.
        """
        if round in self._cohorts:
            raise BudgetExceededError(
                f"round {round} is in the ledger already; computing it again would spend its "
                "clients' budgets twice."
            )
        ids, participation = self._plan.population.ids, self._plan.participation
        participation.check_cohort(round, cohort, lambda: self.draws, ids)
        self._enter(participation.entry(round, cohort, ids))

    def count_reports(self, round: int, clients: Iterable[int]) -> None:
        """Count reports, before they are computed.

        Raises:
            BudgetExceededError: one is at its cap; nothing was counted.
        """
        asked = [int(k) for k in clients]
        names, caps = self._plan.population.ids, self._plan.reports.caps
        for k in asked:
            if self._reports[k] >= caps[k] or asked.count(k) > 1:
                raise BudgetExceededError(
                    f"{names[k]!r} has made {self._reports[k]} of {int(caps[k])} reports; "
                    "one more is not in its noise."
                )
        if asked:
            self._enter({"round": round, "reports": [names[k] for k in asked]})

    def keep_answers(self, round: int, answers: Mapping[int, float]) -> None:
        """Write answers down; raw ones stay in memory, for they carry no noise."""
        if answers:
            names = self._plan.population.ids
            values = {names[k]: float(value) for k, value in sorted(answers.items())}
            entry = {"round": round, "answers": values}
            self._plan.reports.keep(lambda: self._enter(entry), lambda: self._apply(entry))

    def view(
        self,
        round: int,
        updates: Mapping[int, FloatArray] | None = None,
        *,
        repeats: bool = True,
    ) -> RoundView:
        """What a rule may know before a round: public facts, and what was reported and drawn.

        It does not depend on how much of the round, or of later ones, is counted already.

        Args:
            round: the round to come.
            updates: sketches of noised updates.
            repeats: whether a report of this round that a crash left unanswered is made again as
                the very same one; otherwise it is spent.
        """
        plan = self._plan
        known, draws, reports = self._history, self.draws, self.reports
        if self._latest >= round:  # only if a run goes on or is looked at again
            known = [report for report in known if report.round < round]
            for later, cohort in self._cohorts.items():
                if later >= round:
                    np.subtract.at(draws, cohort, 1)
            for later, times in self._asked.items():
                for k, count in times.items():
                    if later > round or (later == round and repeats):
                        reports[k] -= count
                    elif later == round:  # what was answered; the unanswered are spent
                        reports[k] -= k in self._answers.get(round, {})
        return RoundView(
            round=round,
            cohort_size=plan.training.cohort_size,
            ids=plan.population.ids,
            sizes=plan.population.sizes,
            epsilon=plan.population.epsilon,
            public=plan.population.public,
            draws_left=_closed(plan.counts - draws),
            reports_left=_closed(plan.reports.caps - reports),
            seed=plan.seed,
            cohorts=tuple(self._cohorts[t] for t in sorted(self._cohorts) if t < round),
            reports=tuple(known),
            report_stds=_closed(plan.report_stds),
            updates=dict(updates or {}),
        )

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._log is not None:
            self._log.close()

    def _column(self, counted: Counter[int]) -> IntArray:
        """One number for each client; few of very many are ever counted."""
        column = np.zeros(len(self._plan.population), dtype=np.int64)
        column[list(counted)] = list(counted.values())
        return column

    def _enter(self, entry: Mapping[str, Any]) -> None:
        """On disk first, so that nothing happens that the file does not know of."""
        if self._log is not None:
            append_line(self._log, entry)
        self._apply(entry)

    def _take_over(self, path: Path, found: list[dict[str, Any]]) -> None:
        """Count what was counted before."""
        header = journal_header(self._plan)
        if found[0] != header:
            raise VerificationError(
                f"{path} is the ledger of another plan ({str(found[0].get('plan'))[:16]}... "
                f"instead of {str(header['plan'])[:16]}...). Resume with the plan of the run."
            )
        for line, entry in enumerate(found[1:], start=2):
            try:
                self.replay(entry)
            except VerificationError as error:
                raise VerificationError(
                    f"{path}, line {line}: {error} See: dpcohort verify"
                ) from None

    def replay(self, entry: Mapping[str, Any]) -> None:
        """Count a line that was written before; nothing is written.

        Raises:
            VerificationError: it is not one of this plan, counts a round twice or passes a cap.
        """
        plan, round = self._plan, entry.get("round")
        # Not isinstance: JSON's true is an int to Python, but not the number of a round.
        if type(round) is not int or not 0 <= round < plan.training.rounds:
            raise VerificationError("not a round of the plan.")
        if ("cohort" in entry or "draws" in entry) and round in self._cohorts:
            raise VerificationError("the round is counted twice.")
        plan.participation.check_entry(entry, plan.population.ids)
        try:
            self._apply(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise VerificationError(f"not an entry of this plan ({error!r}).") from None
        plan.participation.check_counts(lambda: (self.draws, self.reports), plan.population.ids)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        round, place = int(entry["round"]), self._plan.population.index_of
        if "reports" in entry:
            positions = [place(name) for name in entry["reports"]]
            self._asked.setdefault(round, Counter()).update(positions)
            self._reports.update(positions)
        elif "answers" in entry:
            found = {place(name): float(value) for name, value in entry["answers"].items()}
            self._answers.setdefault(round, {}).update(found)
            self._history.extend(Report(round, k, value) for k, value in sorted(found.items()))
        else:
            cohort = self._plan.participation.cohort_of_entry(entry, place)
            self._cohorts[round] = cohort
            self._draws.update(cohort.tolist())
        self._latest = max(self._latest, round)


def _closed(column: NDArray[Any]) -> NDArray[Any]:
    column.setflags(write=False)
    return column

# SPDX-License-Identifier: Apache-2.0
"""The ledger of an adaptive run: reports, answers and cohorts, each on disk before it counts.

Three kinds of line follow the header. ``reports`` names clients before anything is computed for
their reports; ``answers`` are the noisy numbers they gave, so that a run that goes on comes to the
same cohorts; ``cohort`` names the draws of a round before they are computed. Raw answers are never
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpcohort._validate import IntArray
from dpcohort.adaptive.book import Book
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.plan_file import AnyPlan
from dpcohort.errors import BudgetExceededError, VerificationError
from dpcohort.runs.ledger import Ledger
from dpcohort.runs.ledger_file import LedgerFile, first_line, read_ledger_file

__all__ = ["AdaptiveLedger", "AnyLedger", "adaptive_header", "open_ledger", "read_ledger"]


def adaptive_header(plan: AdaptivePlan) -> dict[str, Any]:
    """The first line: what is counted below it."""
    return {
        **first_line(plan, format="dpcohort adaptive ledger"),
        "reports": "none" if plan.terms is None else plan.terms.mode,
    }


class AdaptiveLedger:
    """Keeps the entries of a book, in memory or in a file.

    Args:
        plan: whose draws and reports.
        path: the file; None keeps the ledger in memory.
    """

    def __init__(self, plan: AdaptivePlan, path: Path | None = None) -> None:
        self._book = Book(plan)
        self.entries: list[Mapping[str, Any]] = []
        self._log = LedgerFile(path, adaptive_header(plan), self._accept)

    @classmethod
    def read(cls, plan: AdaptivePlan, path: Path) -> AdaptiveLedger:
        """The ledger in a file, for looking at it.

        Raises:
            VerificationError: it is not this plan's, or a line is beyond a cap.
        """
        ledger = cls(plan)
        read_ledger_file(path, adaptive_header(plan), ledger._accept)
        return ledger

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds whose draws are counted."""
        return frozenset(int(entry["round"]) for entry in self.entries if "cohort" in entry)

    @property
    def draws(self) -> IntArray:
        """Draws counted so far, by position of the client."""
        return self._book.draws

    @property
    def reports(self) -> IntArray:
        """Reports counted so far, by position of the client."""
        return self._book.reports_made

    def cohort(self, round: int) -> IntArray:
        """The draws of a counted round."""
        found = self._book.cohort(round)
        if found is None:
            raise VerificationError(f"round {round} is not in the ledger.")
        return found

    def count(self, round: int) -> None:
        """Refused: a round is counted when its cohort is chosen, and once only.

        Raises:
            BudgetExceededError: always.
        """
        raise BudgetExceededError(
            f"round {round} of an adaptive run is counted when its cohort is chosen; computing it "
            "again would spend its clients' budgets twice."
        )

    def append(self, entry: Mapping[str, Any]) -> None:
        """Count an entry; when this returns it is on disk."""
        self._log.append(entry)
        self._book.replay([entry])
        self.entries.append(dict(entry))

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def _accept(self, entry: dict[str, Any]) -> None:
        """Take over an entry that was counted before."""
        if "cohort" in entry and entry.get("round") in self.rounds:
            raise VerificationError("the round is counted twice.")
        self._book.replay([entry])
        self.entries.append(entry)


AnyLedger = Ledger | AdaptiveLedger


def open_ledger(plan: AnyPlan, path: Path | None = None) -> AnyLedger:
    """The ledger that goes with a plan; ``path`` None keeps it in memory."""
    if isinstance(plan, AdaptivePlan):
        return AdaptiveLedger(plan, path)
    return Ledger(plan, path)


def read_ledger(plan: AnyPlan, path: Path) -> AnyLedger:
    """The ledger in a file, for looking at it."""
    if isinstance(plan, AdaptivePlan):
        return AdaptiveLedger.read(plan, path)
    return Ledger.read(plan, path)

# SPDX-License-Identifier: Apache-2.0
"""Threshold selection: only clients whose epsilon is large enough, in proportion to size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import number
from dpcohort.errors import InputError
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["Threshold"]


@dataclass(frozen=True, kw_only=True)
class Threshold(PlannedRule):
    """Clients with epsilon at least ``threshold``, and all public ones, in proportion to size.

    Attributes:
        threshold: the smallest epsilon that takes part.

    Example:
        >>> Threshold(threshold=1.0)
        Threshold(threshold=1.0)
    """

    name: ClassVar[str] = "threshold"
    needs: ClassVar[str] = "sizes, budgets, a threshold"
    leaks: ClassVar[str] = "who is below the threshold"
    reference: ClassVar[str] = "Cyffers and Ziani, arXiv 2605.13503 (idea; abstract read)"

    threshold: float

    def __post_init__(self) -> None:
        number("threshold", self.threshold, above=0)

    def select(self, problem: SelectionProblem) -> Selection:
        """The unbiased probabilities of the clients that take part."""
        # NaN, the epsilon of a public client, compares as False.
        taking_part = problem.public | (problem.epsilon >= self.threshold)
        p = np.where(taking_part, problem.unbiased, 0.0)
        total = float(p.sum())
        if total == 0.0:
            private = problem.epsilon[~problem.public]
            largest = f"{float(private.max()):g}" if private.size else "not defined"
            raise InputError(
                "threshold",
                given=self.threshold,
                allowed="small enough for somebody to take part",
                next_step=f"The largest epsilon among the {problem.size} clients is {largest}.",
            )
        return evaluated(self.name, p / total, problem, settings={"threshold": self.threshold})

# SPDX-License-Identifier: Apache-2.0
"""Epsilon-proportional selection: who allows more privacy loss is drawn more often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import number
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["EpsilonProportional"]


@dataclass(frozen=True, kw_only=True)
class EpsilonProportional(PlannedRule):
    """Probability proportional to epsilon, whatever the size.

    Attributes:
        public_epsilon: the epsilon a public client counts with. None: the largest among the other
            clients (1 if everybody is public, so all are equal).

    Example:
        >>> EpsilonProportional()
        EpsilonProportional(public_epsilon=None)
    """

    name: ClassVar[str] = "epsilon-proportional"
    needs: ClassVar[str] = "budgets"
    leaks: ClassVar[str] = "budgets"
    reference: ClassVar[str] = "a common heuristic"

    public_epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.public_epsilon is not None:
            number("public_epsilon", self.public_epsilon, above=0)

    def select(self, problem: SelectionProblem) -> Selection:
        """Probabilities proportional to epsilon."""
        private = problem.epsilon[~problem.public]
        stand_in = self.public_epsilon
        if stand_in is None:
            stand_in = float(private.max()) if private.size else 1.0
        weights = np.where(problem.public, stand_in, problem.epsilon)
        weights = weights / weights.max()  # epsilons near the largest double would overflow
        settings: dict[str, object] = (
            {} if self.public_epsilon is None else {"public_epsilon": self.public_epsilon}
        )
        return evaluated(self.name, weights / weights.sum(), problem, settings=settings)

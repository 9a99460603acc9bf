# SPDX-License-Identifier: Apache-2.0
"""Minimum-epsilon selection: everybody is treated like the strictest client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["MinimumEpsilon"]


@dataclass(frozen=True, kw_only=True)
class MinimumEpsilon(PlannedRule):
    """Unbiased selection, with all noise calibrated to the smallest epsilon of the population.

    What one does without heterogeneous budgets: one epsilon that suits everybody. The probabilities
    are the unbiased ones; what differs is the noise, through :meth:`effective_epsilon`. Public
    clients stay public. Objective and gap are those of the clients' own noise costs, so they
    flatter this rule: the noise in force is larger.

    Example:
        >>> MinimumEpsilon().name
        'minimum-epsilon'
    """

    name: ClassVar[str] = "minimum-epsilon"
    needs: ClassVar[str] = "sizes, budgets"
    leaks: ClassVar[str] = "sizes"
    reference: ClassVar[str] = "what one does without heterogeneous budgets"

    def select(self, problem: SelectionProblem) -> Selection:
        """The unbiased probabilities."""
        return evaluated(self.name, problem.unbiased, problem, settings={})

    def effective_epsilon(self, problem: SelectionProblem) -> FloatArray:
        """The smallest epsilon for every client; NaN for public ones."""
        private = problem.epsilon[~problem.public]
        smallest = float(private.min()) if private.size else np.nan
        return np.where(problem.public, np.nan, smallest)

# SPDX-License-Identifier: Apache-2.0
"""Uniform selection: every client equally likely, whatever its size or budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["Uniform"]


@dataclass(frozen=True, kw_only=True)
class Uniform(PlannedRule):
    """Every client with probability 1 / N.

    Example:
        >>> Uniform().name
        'uniform'
    """

    name: ClassVar[str] = "uniform"
    needs: ClassVar[str] = "nothing"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "the simplest rule there is"

    def select(self, problem: SelectionProblem) -> Selection:
        """The uniform probabilities."""
        p = np.full(problem.size, 1.0 / problem.size)
        return evaluated(self.name, p, problem, settings={})

# SPDX-License-Identifier: Apache-2.0
"""Unbiased selection: in proportion to size, whatever the budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["Unbiased"]


@dataclass(frozen=True, kw_only=True)
class Unbiased(PlannedRule):
    """Selection in proportion to size, p^s = p^u: federated averaging's own rule.

    Example:
        >>> Unbiased().name
        'unbiased'
    """

    name: ClassVar[str] = "unbiased"
    needs: ClassVar[str] = "sizes"
    leaks: ClassVar[str] = "sizes"
    reference: ClassVar[str] = (
        "federated averaging: McMahan et al., AISTATS 2017 (general knowledge)"
    )

    def select(self, problem: SelectionProblem) -> Selection:
        """The unbiased probabilities."""
        return evaluated(self.name, problem.unbiased, problem, settings={})

# SPDX-License-Identifier: Apache-2.0
"""Inverse-noise selection: the least noise, whatever the bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpcohort.selection.path import SelectionPath
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["InverseNoise"]


@dataclass(frozen=True, kw_only=True)
class InverseNoise(PlannedRule):
    """The limit of privacy-aware selection as eta grows: proportional to 1 / V_k.

    That is in the paper's noise model; with linear costs, clients too expensive to be worth a
    single draw get 0. With public clients the least noise is none: they take all probability,
    shared in proportion to their size, and nobody else is drawn.

    Example:
        >>> InverseNoise().name
        'inverse-noise'
    """

    name: ClassVar[str] = "inverse-noise"
    needs: ClassVar[str] = "sizes, budgets"
    leaks: ClassVar[str] = "budgets"
    reference: ClassVar[str] = "the paper (arXiv 2602.22633), Problem 1 as eta grows"

    def select(self, problem: SelectionProblem) -> Selection:
        """The probabilities of least noise."""
        path = SelectionPath(
            problem.unbiased, problem.noise_costs, linear_costs=problem.linear_costs
        )
        return evaluated(self.name, path.limit, problem, settings={})

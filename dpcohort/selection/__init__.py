# SPDX-License-Identifier: Apache-2.0
"""Who is drawn, how often, and the proof that no other choice has a smaller bound."""

from __future__ import annotations

from dpcohort.selection.path import SelectionPath
from dpcohort.selection.problem import (
    PlannedRule,
    Selection,
    SelectionProblem,
    estimate_smoothness,
    exact_costs,
    paper_costs,
    resolve_eta,
)
from dpcohort.selection.solver import Solution, solve_selection

__all__ = [
    "PlannedRule",
    "Selection",
    "SelectionPath",
    "SelectionProblem",
    "Solution",
    "estimate_smoothness",
    "exact_costs",
    "paper_costs",
    "resolve_eta",
    "solve_selection",
]

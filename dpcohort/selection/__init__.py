# SPDX-License-Identifier: Apache-2.0
"""Who is drawn, how often, and the proof that no other choice has a smaller bound."""

from __future__ import annotations

from dpcohort.selection.pooled import Pool, solve_pooled
from dpcohort.selection.problem import (
    PlannedRule,
    Selection,
    SelectionProblem,
    exact_costs,
    paper_costs,
    resolve_eta,
)
from dpcohort.selection.rules import rule_from_settings
from dpcohort.selection.solver import SelectionPath, Solution, solve_selection

__all__ = [
    "PlannedRule",
    "Pool",
    "Selection",
    "SelectionPath",
    "SelectionProblem",
    "Solution",
    "exact_costs",
    "paper_costs",
    "resolve_eta",
    "rule_from_settings",
    "solve_pooled",
    "solve_selection",
]

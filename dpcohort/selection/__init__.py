# SPDX-License-Identifier: Apache-2.0
"""Who is drawn, how often, and the proof that no other choice has a smaller bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
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
    from dpcohort.selection.rules import rule_from_settings
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
    "rule_from_settings",
    "solve_selection",
]

_HOMES = {
    "PlannedRule": "problem",
    "Selection": "problem",
    "SelectionPath": "path",
    "SelectionProblem": "problem",
    "Solution": "solver",
    "estimate_smoothness": "problem",
    "exact_costs": "problem",
    "paper_costs": "problem",
    "resolve_eta": "problem",
    "rule_from_settings": "rules",
    "solve_selection": "solver",
}

__getattr__ = names_on_use(__name__, _HOMES)

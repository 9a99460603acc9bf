# SPDX-License-Identifier: Apache-2.0
"""Who is drawn, how often, and the proof that no other choice has a smaller bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.selection.distributed import Pool as Pool
    from dpcohort.selection.distributed import solve_distributed as solve_distributed
    from dpcohort.selection.problem import PlannedRule as PlannedRule
    from dpcohort.selection.problem import Selection as Selection
    from dpcohort.selection.problem import SelectionProblem as SelectionProblem
    from dpcohort.selection.problem import exact_costs as exact_costs
    from dpcohort.selection.problem import paper_costs as paper_costs
    from dpcohort.selection.problem import resolve_eta as resolve_eta
    from dpcohort.selection.problem import selected as selected
    from dpcohort.selection.rules import rule_from_settings as rule_from_settings
    from dpcohort.selection.solver import SelectionPath as SelectionPath
    from dpcohort.selection.solver import Solution as Solution
    from dpcohort.selection.solver import solve_selection as solve_selection

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    distributed="Pool solve_distributed",
    problem="PlannedRule Selection SelectionProblem exact_costs paper_costs resolve_eta selected",
    rules="rule_from_settings",
    solver="SelectionPath Solution solve_selection",
)

# SPDX-License-Identifier: Apache-2.0
"""Who is drawn, how often, and the proof that no other choice has a smaller bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.selection._distributed import SMALLEST_WEIGHT as SMALLEST_WEIGHT
    from dpcohort.selection._distributed import Pool as Pool
    from dpcohort.selection._distributed import distributed_weights as distributed_weights
    from dpcohort.selection._distributed import solve_distributed as solve_distributed
    from dpcohort.selection._problem import PlannedRule as PlannedRule
    from dpcohort.selection._problem import Selection as Selection
    from dpcohort.selection._problem import SelectionProblem as SelectionProblem
    from dpcohort.selection._problem import evaluated as evaluated
    from dpcohort.selection._problem import exact_costs as exact_costs
    from dpcohort.selection._problem import paper_costs as paper_costs
    from dpcohort.selection._problem import resolve_eta as resolve_eta
    from dpcohort.selection._problem import selected as selected
    from dpcohort.selection._rules import PrivacyAware as PrivacyAware
    from dpcohort.selection._rules import rule_from_settings as rule_from_settings
    from dpcohort.selection._solver import SelectionPath as SelectionPath
    from dpcohort.selection._solver import Solution as Solution
    from dpcohort.selection._solver import solve_selection as solve_selection

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _distributed="SMALLEST_WEIGHT Pool distributed_weights solve_distributed",
    _problem=(
        "PlannedRule Selection SelectionProblem evaluated exact_costs paper_costs resolve_eta "
        "selected"
    ),
    _rules="PrivacyAware rule_from_settings",
    _solver="SelectionPath Solution solve_selection",
)

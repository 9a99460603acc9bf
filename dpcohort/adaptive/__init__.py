# SPDX-License-Identifier: Apache-2.0
"""Adaptive selection: a cohort chosen each round from what clients report, all of it charged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.adaptive._planning import make_adaptive_plan as make_adaptive_plan
    from dpcohort.adaptive._rule import AdaptiveRule as AdaptiveRule
    from dpcohort.adaptive._rule import Report as Report
    from dpcohort.adaptive._rule import ReportTerms as ReportTerms
    from dpcohort.adaptive._rule import RoundView as RoundView

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _planning="make_adaptive_plan",
    _rule="AdaptiveRule Report ReportTerms RoundView",
)

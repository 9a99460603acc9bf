# SPDX-License-Identifier: Apache-2.0
"""Adaptive selection: a cohort chosen each round from what clients report, all of it charged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.adaptive.planning import make_adaptive_plan as make_adaptive_plan
    from dpcohort.adaptive.rule import AdaptiveRule as AdaptiveRule
    from dpcohort.adaptive.rule import Report as Report
    from dpcohort.adaptive.rule import ReportTerms as ReportTerms
    from dpcohort.adaptive.rule import RoundView as RoundView

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    planning="make_adaptive_plan",
    rule="AdaptiveRule Report ReportTerms RoundView",
)

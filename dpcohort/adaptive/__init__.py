# SPDX-License-Identifier: Apache-2.0
"""Adaptive selection: a cohort chosen each round from what clients report, all of it charged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.adaptive.planning import make_adaptive_plan
    from dpcohort.adaptive.rule import AdaptiveRule, Report, ReportTerms, RoundView

__all__ = ["AdaptiveRule", "Report", "ReportTerms", "RoundView", "make_adaptive_plan"]

_HOMES = {
    "AdaptiveRule": "rule",
    "Report": "rule",
    "ReportTerms": "rule",
    "RoundView": "rule",
    "make_adaptive_plan": "planning",
}

__getattr__ = names_on_use(__name__, _HOMES)

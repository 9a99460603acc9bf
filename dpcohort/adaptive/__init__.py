# SPDX-License-Identifier: Apache-2.0
"""Adaptive selection: a cohort chosen each round from what clients report, all of it charged.

Planning loads no torch; names are imported when first used, so only sessions do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.adaptive.book import Book
    from dpcohort.adaptive.plan import AdaptivePlan, make_adaptive_plan
    from dpcohort.adaptive.report_terms import ReportTerms
    from dpcohort.adaptive.rule import AdaptiveRule
    from dpcohort.adaptive.session import AdaptiveSession, adaptive_rounds, adaptive_stack
    from dpcohort.adaptive.view import Report, RoundView

__all__ = [
    "AdaptivePlan",
    "AdaptiveRule",
    "AdaptiveSession",
    "Book",
    "Report",
    "ReportTerms",
    "RoundView",
    "adaptive_rounds",
    "adaptive_stack",
    "make_adaptive_plan",
]

_HOMES = {
    "AdaptivePlan": "plan",
    "AdaptiveRule": "rule",
    "AdaptiveSession": "session",
    "Book": "book",
    "Report": "view",
    "ReportTerms": "report_terms",
    "RoundView": "view",
    "adaptive_rounds": "session",
    "adaptive_stack": "session",
    "make_adaptive_plan": "plan",
}

__getattr__ = names_on_use(__name__, _HOMES)

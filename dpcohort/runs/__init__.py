# SPDX-License-Identifier: Apache-2.0
"""Runs: a plan executed, written down as it happens, and checked afterwards.

Reading, verifying and comparing runs needs no torch; names are imported when first used, so only
training loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.runs.comparison import Comparison, compare_runs
    from dpcohort.runs.evaluation import Interval, mean_interval
    from dpcohort.runs.receipts import Receipt
    from dpcohort.runs.run import Callback, Curve, Run
    from dpcohort.runs.training import train
    from dpcohort.runs.verification import Finding, Verification, verify_run

__all__ = [
    "Callback",
    "Comparison",
    "Curve",
    "Finding",
    "Interval",
    "Receipt",
    "Run",
    "Verification",
    "compare_runs",
    "mean_interval",
    "train",
    "verify_run",
]

_HOMES = {
    "Callback": "run",
    "Comparison": "comparison",
    "Curve": "run",
    "Finding": "verification",
    "Interval": "evaluation",
    "Receipt": "receipts",
    "Run": "run",
    "Verification": "verification",
    "compare_runs": "comparison",
    "mean_interval": "evaluation",
    "train": "training",
    "verify_run": "verification",
}

__getattr__ = names_on_use(__name__, _HOMES)

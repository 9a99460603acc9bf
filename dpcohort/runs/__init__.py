# SPDX-License-Identifier: Apache-2.0
"""Runs: a plan executed, written down as it happens, and checked afterwards.

Reading, verifying and comparing runs needs no torch; names are imported when first used, so only
training loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.runs.aggregation_record import aggregation_for
    from dpcohort.runs.comparison import Comparison, compare_runs
    from dpcohort.runs.configured import configured_job, configured_optimiser
    from dpcohort.runs.configured_plan import configured_data
    from dpcohort.runs.evaluation import Interval, mean_interval, summarise_seeds, who_was_heard
    from dpcohort.runs.folder import finite_json
    from dpcohort.runs.job import Job
    from dpcohort.runs.receipts import NOT_PRIVATE, Receipt, make_receipts
    from dpcohort.runs.run import Callback, Curve, Run
    from dpcohort.runs.training import folder_name, train, train_group, train_side_by_side
    from dpcohort.runs.verification import Finding, Verification, verify_run

__all__ = [
    "NOT_PRIVATE",
    "Callback",
    "Comparison",
    "Curve",
    "Finding",
    "Interval",
    "Job",
    "Receipt",
    "Run",
    "Verification",
    "aggregation_for",
    "compare_runs",
    "configured_data",
    "configured_job",
    "configured_optimiser",
    "finite_json",
    "folder_name",
    "make_receipts",
    "mean_interval",
    "summarise_seeds",
    "train",
    "train_group",
    "train_side_by_side",
    "verify_run",
    "who_was_heard",
]

_HOMES = {
    "Callback": "run",
    "Comparison": "comparison",
    "Curve": "run",
    "Finding": "verification",
    "Interval": "evaluation",
    "Job": "job",
    "NOT_PRIVATE": "receipts",
    "Receipt": "receipts",
    "Run": "run",
    "Verification": "verification",
    "aggregation_for": "aggregation_record",
    "compare_runs": "comparison",
    "configured_data": "configured_plan",
    "configured_job": "configured",
    "configured_optimiser": "configured",
    "finite_json": "folder",
    "folder_name": "training",
    "make_receipts": "receipts",
    "mean_interval": "evaluation",
    "summarise_seeds": "evaluation",
    "train": "training",
    "train_group": "training",
    "train_side_by_side": "training",
    "verify_run": "verification",
    "who_was_heard": "evaluation",
}

__getattr__ = names_on_use(__name__, _HOMES)

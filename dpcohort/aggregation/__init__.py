# SPDX-License-Identifier: Apache-2.0
"""How the server combines the noisy updates of a cohort: one file a rule."""

from __future__ import annotations

from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.mean import Mean
from dpcohort.aggregation.rule import AggregationRule

__all__ = ["AggregationRule", "Cohort", "Mean"]

# SPDX-License-Identifier: Apache-2.0
"""How the server combines the noisy updates of a cohort: one file a rule."""

from __future__ import annotations

from dpcohort.aggregation.clipped_mean import ClippedMean
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.epsilon_weighted import EpsilonWeighted
from dpcohort.aggregation.estimated_noise import EstimatedNoise
from dpcohort.aggregation.geometric_median import GeometricMedian
from dpcohort.aggregation.importance_compensated import ImportanceCompensated
from dpcohort.aggregation.inverse_variance import InverseVariance
from dpcohort.aggregation.mean import Mean
from dpcohort.aggregation.minimum_noise import MinimumNoise
from dpcohort.aggregation.named import AGGREGATIONS, aggregation_from_settings, for_plan
from dpcohort.aggregation.projected import Projected
from dpcohort.aggregation.rule import AggregationRule
from dpcohort.aggregation.size_weighted import SizeWeighted
from dpcohort.aggregation.trimmed_mean import TrimmedMean

__all__ = [
    "AGGREGATIONS",
    "AggregationRule",
    "ClippedMean",
    "Cohort",
    "EpsilonWeighted",
    "EstimatedNoise",
    "GeometricMedian",
    "ImportanceCompensated",
    "InverseVariance",
    "Mean",
    "MinimumNoise",
    "Projected",
    "SizeWeighted",
    "TrimmedMean",
    "aggregation_from_settings",
    "for_plan",
]

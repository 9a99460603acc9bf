# SPDX-License-Identifier: Apache-2.0
"""How the server combines the noisy updates of a cohort: one file a rule."""

from __future__ import annotations

from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.named import AGGREGATIONS, aggregation_from_settings, for_plan
from dpcohort.aggregation.noise_check import NoiseCheck, check_declared_noise
from dpcohort.aggregation.rule import AggregationRule
from dpcohort.aggregation.rules.clipped_mean import ClippedMean
from dpcohort.aggregation.rules.epsilon_weighted import EpsilonWeighted
from dpcohort.aggregation.rules.estimated_noise import EstimatedNoise
from dpcohort.aggregation.rules.geometric_median import GeometricMedian
from dpcohort.aggregation.rules.importance_compensated import ImportanceCompensated
from dpcohort.aggregation.rules.inverse_variance import InverseVariance
from dpcohort.aggregation.rules.mean import Mean
from dpcohort.aggregation.rules.minimum_noise import MinimumNoise
from dpcohort.aggregation.rules.projected import Projected
from dpcohort.aggregation.rules.projected_plus import ProjectedPlus
from dpcohort.aggregation.rules.size_weighted import SizeWeighted
from dpcohort.aggregation.rules.trimmed_mean import TrimmedMean

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
    "NoiseCheck",
    "Projected",
    "ProjectedPlus",
    "SizeWeighted",
    "TrimmedMean",
    "aggregation_from_settings",
    "check_declared_noise",
    "for_plan",
]

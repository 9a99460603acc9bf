# SPDX-License-Identifier: Apache-2.0
"""How the server combines the noisy updates of a cohort: the rules, and one by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.aggregation.projected import Projected as Projected
    from dpcohort.aggregation.projected import ProjectedPlus as ProjectedPlus
    from dpcohort.aggregation.robust import ClippedMean as ClippedMean
    from dpcohort.aggregation.robust import EstimatedNoise as EstimatedNoise
    from dpcohort.aggregation.robust import GeometricMedian as GeometricMedian
    from dpcohort.aggregation.robust import NoiseCheck as NoiseCheck
    from dpcohort.aggregation.robust import TrimmedMean as TrimmedMean
    from dpcohort.aggregation.robust import check_declared_noise as check_declared_noise
    from dpcohort.aggregation.rule import AggregationRule as AggregationRule
    from dpcohort.aggregation.rule import Cohort as Cohort
    from dpcohort.aggregation.rule import EpsilonWeighted as EpsilonWeighted
    from dpcohort.aggregation.rule import ImportanceCompensated as ImportanceCompensated
    from dpcohort.aggregation.rule import InverseVariance as InverseVariance
    from dpcohort.aggregation.rule import Mean as Mean
    from dpcohort.aggregation.rule import MinimumNoise as MinimumNoise
    from dpcohort.aggregation.rule import SizeWeighted as SizeWeighted
    from dpcohort.aggregation.rule import combine_round as combine_round
    from dpcohort.aggregation.rule import for_plan as for_plan
    from dpcohort.aggregation.rule import plan_column as plan_column

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    projected="Projected ProjectedPlus",
    robust="ClippedMean EstimatedNoise GeometricMedian NoiseCheck TrimmedMean check_declared_noise",
    rule=(
        "AggregationRule Cohort EpsilonWeighted ImportanceCompensated InverseVariance Mean "
        "MinimumNoise SizeWeighted combine_round for_plan plan_column"
    ),
)

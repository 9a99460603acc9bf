# SPDX-License-Identifier: Apache-2.0
"""How the server combines the noisy updates of a cohort: the rules, and one by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.aggregation._projected import Projected as Projected
    from dpcohort.aggregation._projected import ProjectedPlus as ProjectedPlus
    from dpcohort.aggregation._rule import AggregationRule as AggregationRule
    from dpcohort.aggregation._rule import Cohort as Cohort
    from dpcohort.aggregation._rule import EpsilonWeighted as EpsilonWeighted
    from dpcohort.aggregation._rule import ImportanceCompensated as ImportanceCompensated
    from dpcohort.aggregation._rule import InverseVariance as InverseVariance
    from dpcohort.aggregation._rule import Mean as Mean
    from dpcohort.aggregation._rule import MinimumNoise as MinimumNoise
    from dpcohort.aggregation._rule import SizeWeighted as SizeWeighted
    from dpcohort.aggregation._rule import TrimmedMean as TrimmedMean
    from dpcohort.aggregation._rule import checked_updates as checked_updates
    from dpcohort.aggregation._rule import combine_round as combine_round
    from dpcohort.aggregation._rule import for_plan as for_plan
    from dpcohort.aggregation._rule import plan_column as plan_column
    from dpcohort.aggregation._rule import weighted_sum as weighted_sum

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _projected="Projected ProjectedPlus",
    _rule=(
        "AggregationRule Cohort EpsilonWeighted ImportanceCompensated InverseVariance Mean "
        "MinimumNoise SizeWeighted TrimmedMean checked_updates combine_round for_plan plan_column "
        "weighted_sum"
    ),
)

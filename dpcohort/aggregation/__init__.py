# SPDX-License-Identifier: Apache-2.0
"""How the server combines the noisy updates of a cohort: the rules, and one by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpcohort.aggregation.projected import Projected, ProjectedPlus
from dpcohort.aggregation.robust import (
    ClippedMean,
    EstimatedNoise,
    GeometricMedian,
    NoiseCheck,
    TrimmedMean,
    check_declared_noise,
)
from dpcohort.aggregation.rule import (
    AggregationRule,
    Cohort,
    EpsilonWeighted,
    ImportanceCompensated,
    InverseVariance,
    Mean,
    MinimumNoise,
    SizeWeighted,
    combine_round,
)
from dpcohort.plugins import REGISTRIES

if TYPE_CHECKING:
    from dpcohort.plan import Plan

__all__ = [
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
    "combine_round",
    "for_plan",
    "plan_column",
]

_REGISTRY = REGISTRIES["aggregation"]

#: The settings that a plan fills in, by their name in the rules.
_FROM_PLAN: dict[str, Callable[[Plan], object]] = {
    "sizes": lambda plan: plan.population.sizes,
    "epsilon": lambda plan: plan.population.epsilon,
    "probabilities": lambda plan: plan.probabilities,
    "unbiased": lambda plan: plan.selection.unbiased,
}


def aggregation_from_settings(name: str, **settings: Any) -> AggregationRule:
    """The aggregation of that name with these settings.

    Args:
        name: of a rule here or in an installed package, or ``module:Class``.
        settings: as the rule's class takes them.

    Raises:
        InputError: for a name or setting that does not exist (the nearest one is suggested), a
            setting that is missing, or a value out of range.

    Example:
        >>> aggregation_from_settings("trimmed-mean", trim=0.2)
        TrimmedMean(trim=0.2)
        >>> aggregation_from_settings("trimed-mean")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: aggregation rule = 'trimed-mean' is not allowed: it must be ...
    """
    made: AggregationRule = _REGISTRY.make(name, settings)
    return made


def for_plan(name: str, plan: Plan, **settings: Any) -> AggregationRule:
    """The aggregation of that name, with what a plan knows filled in: sizes, probabilities, ...

    The epsilons are those the clients declared. Settings that are given go before the plan's.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> training = Training(rounds=4, cohort_size=2, batch_size=20, dimension=10)
        >>> for_plan("size-weighted", make_plan(clients, training, seed=1)).sizes
        array([300., 100.])
    """
    needed = set(_REGISTRY.settings_of(name)) & _REGISTRY.filled
    known = {field: plan_column(field, plan) for field in needed}
    return aggregation_from_settings(name, **{**known, **settings})


def plan_column(field: str, plan: Plan) -> object:
    """What a plan fills in for a setting of that name, one number a client.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> training = Training(rounds=4, cohort_size=2, batch_size=20, dimension=10)
        >>> plan_column("unbiased", make_plan(clients, training, seed=1))
        array([0.75, 0.25])
    """
    return _FROM_PLAN[field](plan)

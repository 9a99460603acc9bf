# SPDX-License-Identifier: Apache-2.0
"""The aggregation rules by name, and how to make one from settings or for a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from dpcohort._validate import choice, nearest
from dpcohort.aggregation.clipped_mean import ClippedMean
from dpcohort.aggregation.epsilon_weighted import EpsilonWeighted
from dpcohort.aggregation.estimated_noise import EstimatedNoise
from dpcohort.aggregation.geometric_median import GeometricMedian
from dpcohort.aggregation.importance_compensated import ImportanceCompensated
from dpcohort.aggregation.inverse_variance import InverseVariance
from dpcohort.aggregation.mean import Mean
from dpcohort.aggregation.minimum_noise import MinimumNoise
from dpcohort.aggregation.projected import Projected
from dpcohort.aggregation.rule import AggregationRule
from dpcohort.aggregation.size_weighted import SizeWeighted
from dpcohort.aggregation.trimmed_mean import TrimmedMean
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from dpcohort.plan import Plan

__all__ = ["AGGREGATIONS", "aggregation_from_settings", "for_plan"]

#: Every rule by its name.
AGGREGATIONS: dict[str, type[AggregationRule]] = {
    "mean": Mean,
    "size-weighted": SizeWeighted,
    "importance-compensated": ImportanceCompensated,
    "epsilon-weighted": EpsilonWeighted,
    "inverse-variance": InverseVariance,
    "estimated-noise": EstimatedNoise,
    "minimum-noise": MinimumNoise,
    "projected": Projected,
    "clipped-mean": ClippedMean,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
}

#: Settings that a plan knows, by their name in the rules.
_FROM_PLAN: dict[str, Callable[[Plan], object]] = {
    "sizes": lambda plan: plan.population.sizes,
    "epsilon": lambda plan: plan.population.epsilon,
    "probabilities": lambda plan: plan.selection.probabilities,
    "unbiased": lambda plan: plan.selection.unbiased,
}


def aggregation_from_settings(name: str, **settings: Any) -> AggregationRule:
    """The aggregation of that name with these settings.

    Raises:
        InputError: for a name or setting that does not exist (the nearest one is suggested), a
            setting that is missing, or a value out of range.

    Example:
        >>> aggregation_from_settings("trimmed-mean", trim=0.2)
        TrimmedMean(trim=0.2)
        >>> aggregation_from_settings("trimed-mean")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: aggregation = 'trimed-mean' is not allowed: it must be ...
    """
    rule = AGGREGATIONS[choice("aggregation", name, AGGREGATIONS)]
    known = {field.name: field for field in fields(rule)}  # type: ignore[arg-type]
    for setting in settings:
        if setting not in known:
            raise _unknown(name, setting, list(known))
    for field in known.values():
        if field.default is MISSING and field.name not in settings:
            step = " A plan knows it: use for_plan." if field.name in _FROM_PLAN else ""
            raise InputError.because(
                f"Aggregation '{name}' needs the setting '{field.name}', which is not given.{step}"
            )
    return rule(**settings)


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
    rule = AGGREGATIONS[choice("aggregation", name, AGGREGATIONS)]
    needed = {field.name for field in fields(rule)} & set(_FROM_PLAN)  # type: ignore[arg-type]
    known = {field: _FROM_PLAN[field](plan) for field in needed}
    return aggregation_from_settings(name, **{**known, **settings})


def _unknown(rule: str, setting: str, known: list[str]) -> InputError:
    hint = nearest(setting, known)
    return InputError(
        f"setting of aggregation '{rule}'",
        given=setting,
        allowed="one of " + ", ".join(known) if known else "left out: this rule has no settings",
        next_step=f"Did you mean {hint!r}?" if hint else None,
    )

# SPDX-License-Identifier: Apache-2.0
"""The planned rules, and how to make one from a name and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpcohort.plugins import REGISTRIES
from dpcohort.selection.problem import PlannedRule
from dpcohort.selection.rules.baselines import (
    BestThreshold,
    EpsilonProportional,
    GradientBound,
    MinimumEpsilon,
    Threshold,
    Unbiased,
    Uniform,
)
from dpcohort.selection.rules.privacy_aware import (
    InverseNoise,
    ParticipationCounts,
    PaymentCap,
    PrivacyAware,
)

__all__ = [
    "RULES",
    "BestThreshold",
    "EpsilonProportional",
    "GradientBound",
    "InverseNoise",
    "MinimumEpsilon",
    "ParticipationCounts",
    "PaymentCap",
    "PlannedRule",
    "PrivacyAware",
    "Threshold",
    "Unbiased",
    "Uniform",
    "rule_from_settings",
]

_REGISTRY = REGISTRIES["selection"]

#: Every rule of this package by its name.
RULES: dict[str, Callable[..., PlannedRule]] = {
    name: _REGISTRY.find(name) for name in _REGISTRY.built_in
}


def rule_from_settings(name: str, **settings: Any) -> PlannedRule:
    """The rule of that name with these settings.

    Args:
        name: of a rule here or in an installed package, or ``module:Class``.
        settings: as the rule's class takes them.

    Raises:
        InputError: for a name or setting that does not exist (the nearest one is suggested), a
            setting that is missing, or a value out of range.

    Example:
        >>> rule_from_settings("privacy-aware", eta=0.5)
        PrivacyAware(eta=0.5, bias_cap=None, floor=0.0, cap=1.0)
        >>> rule_from_settings("privacy-awear")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: selection rule = 'privacy-awear' is not allowed: it must be ...
    """
    made: PlannedRule = _REGISTRY.make(name, settings)
    return made

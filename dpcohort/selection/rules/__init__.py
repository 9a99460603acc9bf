# SPDX-License-Identifier: Apache-2.0
"""The planned rules, one file each, and how to make one from a name and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpcohort.rule_registry import REGISTRIES
from dpcohort.selection.problem import PlannedRule
from dpcohort.selection.rules.best_threshold import BestThreshold
from dpcohort.selection.rules.epsilon_proportional import EpsilonProportional
from dpcohort.selection.rules.gradient_bound import GradientBound
from dpcohort.selection.rules.inverse_noise import InverseNoise
from dpcohort.selection.rules.minimum_epsilon import MinimumEpsilon
from dpcohort.selection.rules.participation_counts import ParticipationCounts
from dpcohort.selection.rules.payment_cap import PaymentCap
from dpcohort.selection.rules.privacy_aware import PrivacyAware
from dpcohort.selection.rules.threshold import Threshold
from dpcohort.selection.rules.unbiased import Unbiased
from dpcohort.selection.rules.uniform import Uniform

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

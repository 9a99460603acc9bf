# SPDX-License-Identifier: Apache-2.0
"""The planned rules, and how to make one from a name and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpcohort._lazy import names_on_use
from dpcohort.plugins import REGISTRIES
from dpcohort.selection.problem import PlannedRule

if TYPE_CHECKING:
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

_HOMES = {
    "BestThreshold": "baselines",
    "EpsilonProportional": "baselines",
    "GradientBound": "baselines",
    "InverseNoise": "privacy_aware",
    "MinimumEpsilon": "baselines",
    "ParticipationCounts": "privacy_aware",
    "PaymentCap": "privacy_aware",
    "PrivacyAware": "privacy_aware",
    "Threshold": "baselines",
    "Unbiased": "baselines",
    "Uniform": "baselines",
}

__getattr__ = names_on_use(__name__, _HOMES)


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
    made: PlannedRule = REGISTRIES["selection"].make(name, settings)
    return made

# SPDX-License-Identifier: Apache-2.0
"""The planned rules, one file each, and how to make one from a name and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpcohort._lazy import names_on_use
from dpcohort.rule_registry import REGISTRIES
from dpcohort.selection.problem import PlannedRule

if TYPE_CHECKING:
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
    "BestThreshold": "best_threshold",
    "EpsilonProportional": "epsilon_proportional",
    "GradientBound": "gradient_bound",
    "InverseNoise": "inverse_noise",
    "MinimumEpsilon": "minimum_epsilon",
    "ParticipationCounts": "participation_counts",
    "PaymentCap": "payment_cap",
    "PrivacyAware": "privacy_aware",
    "Threshold": "threshold",
    "Unbiased": "unbiased",
    "Uniform": "uniform",
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

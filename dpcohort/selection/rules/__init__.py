# SPDX-License-Identifier: Apache-2.0
"""The planned rules, one file each, and how to make one from a name and settings."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from dpcohort._validate import choice, nearest
from dpcohort.errors import InputError
from dpcohort.selection.problem import PlannedRule
from dpcohort.selection.rules.best_threshold import BestThreshold
from dpcohort.selection.rules.epsilon_proportional import EpsilonProportional
from dpcohort.selection.rules.gradient_bound import GradientBound
from dpcohort.selection.rules.inverse_noise import InverseNoise
from dpcohort.selection.rules.minimum_epsilon import MinimumEpsilon
from dpcohort.selection.rules.privacy_aware import PrivacyAware
from dpcohort.selection.rules.threshold import Threshold
from dpcohort.selection.rules.unbiased import Unbiased
from dpcohort.selection.rules.uniform import Uniform

__all__ = [
    "COLUMN_RULES",
    "RULES",
    "BestThreshold",
    "EpsilonProportional",
    "GradientBound",
    "InverseNoise",
    "MinimumEpsilon",
    "PlannedRule",
    "PrivacyAware",
    "Threshold",
    "Unbiased",
    "Uniform",
    "rule_from_settings",
]

#: Every rule by its name, that a configuration file can ask for.
RULES: dict[str, type[PlannedRule]] = {
    "unbiased": Unbiased,
    "uniform": Uniform,
    "privacy-aware": PrivacyAware,
    "inverse-noise": InverseNoise,
    "epsilon-proportional": EpsilonProportional,
    "threshold": Threshold,
    "best-threshold": BestThreshold,
    "minimum-epsilon": MinimumEpsilon,
}

#: Rules with a value for each client, for which a configuration file has no place.
COLUMN_RULES: dict[str, type[PlannedRule]] = {"gradient-bound": GradientBound}


def rule_from_settings(name: str, **settings: Any) -> PlannedRule:
    """The rule of that name with these settings.

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
    rules = RULES | COLUMN_RULES
    rule = rules[choice("selection rule", name, rules)]
    known = {field.name: field for field in fields(rule)}  # type: ignore[arg-type]
    for setting in settings:
        if setting not in known:
            raise _unknown(name, setting, list(known))
    for field in known.values():
        if field.default is MISSING and field.name not in settings:
            raise InputError.because(
                f"Rule '{name}' needs the setting '{field.name}', which is not given."
            )
    return rule(**settings)


def _unknown(rule: str, setting: str, known: list[str]) -> InputError:
    hint = nearest(setting, known)
    return InputError(
        f"setting of rule '{rule}'",
        given=setting,
        allowed="one of " + ", ".join(known) if known else "left out: this rule has no settings",
        next_step=f"Did you mean {hint!r}?" if hint else None,
    )

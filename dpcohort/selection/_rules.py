# SPDX-License-Identifier: Apache-2.0
"""The planned rules, and how to make one from a name and settings.

The paper's rule is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpcohort._validate import number
from dpcohort.errors import InputError
from dpcohort.plugins import RULES, make_rule
from dpcohort.selection._other_rules import (
    BestThreshold,
    EpsilonProportional,
    InverseNoise,
    MinimumEpsilon,
    Threshold,
    Unbiased,
    Uniform,
)
from dpcohort.selection._problem import (
    Eta,
    PlannedRule,
    Selection,
    SelectionProblem,
    evaluated,
    resolve_eta,
)

__all__ = [
    "BestThreshold",
    "EpsilonProportional",
    "InverseNoise",
    "MinimumEpsilon",
    "PrivacyAware",
    "Threshold",
    "Unbiased",
    "Uniform",
    "rule_from_settings",
]


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
    if name in RULES["adaptive"]:
        raise InputError.because(
            f"the rule {name} is adaptive: it chooses each cohort during the training. Plan it "
            "with make_adaptive_plan, or as selection.rule of a config."
        )
    made: PlannedRule = make_rule("selection", name, settings)
    return made


@dataclass(frozen=True, kw_only=True)
class PrivacyAware(PlannedRule):
    """The probabilities that minimise the persistent error of Theorem 2 (Problem 1).

    Attributes:
        eta: weight of the noise, a number or ``"auto"`` (2 L sqrt(T)); ``"auto"`` if neither this
            nor ``bias_cap`` is given. Exclusive with ``bias_cap``.
        bias_cap: instead of eta, the largest ``||p - u||_1`` (between 0 and 2) to accept; the eta
            it corresponds to is reported. A cap that does not bind gives the selection of least
            noise, reported at ``"auto"``.
        floor: every client keeps at least this fraction of its unbiased probability.
        cap: no client gets more than this probability.
    """

    name: ClassVar[str] = "privacy-aware"
    needs: ClassVar[str] = "sizes, budgets"
    leaks: ClassVar[str] = "sizes, budgets"
    reference: ClassVar[str] = "the paper (arXiv 2602.22633), Problem 1"

    eta: Eta | None = None
    bias_cap: float | None = None
    floor: float = 0.0
    cap: float = 1.0

    def __post_init__(self) -> None:
        if self.eta is not None and self.bias_cap is not None:
            raise InputError.because(
                f"eta = {self.eta!r} and bias_cap = {self.bias_cap!r} are both given; keep one: "
                "a bias cap is another way to choose eta."
            )
        if self.eta is not None:
            resolve_eta(self.eta, total_steps=1, smoothness=1.0)
        if self.bias_cap is not None:
            number("bias_cap", self.bias_cap, at_least=0, at_most=2)
        number("floor", self.floor, at_least=0, at_most=1)
        number("cap", self.cap, above=0, at_most=1)

    def select(self, problem: SelectionProblem) -> Selection:
        """The optimum of Problem 1 with the certificate of its optimality."""
        bounds: dict[str, Any] = {
            "floor": self.floor * problem.unbiased if self.floor > 0.0 else None,
            "cap": np.full(problem.size, self.cap) if self.cap < 1.0 else None,
        }
        if self.bias_cap is None:
            eta = problem.eta("auto" if self.eta is None else self.eta)
            solution = problem.solved(eta, **bounds)
        else:
            solution = problem.solved_within(self.bias_cap, **bounds)
            eta = solution.eta
            if not math.isfinite(eta):
                p = solution.probabilities
                return evaluated(self.name, p, problem, settings=self._settings())
        return Selection(
            rule=self.name,
            probabilities=solution.probabilities,
            unbiased=problem.unbiased,
            eta=eta,
            objective=solution.objective,
            lower_bound=solution.lower_bound,
            gap=solution.gap,
            settings=self._settings(),
        )

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {"bias_cap": self.bias_cap}
        if self.bias_cap is None:
            settings = {"eta": "auto" if self.eta is None else self.eta}
        if self.floor > 0.0:
            settings["floor"] = self.floor
        if self.cap < 1.0:
            settings["cap"] = self.cap
        return settings

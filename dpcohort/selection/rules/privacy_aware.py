# SPDX-License-Identifier: Apache-2.0
"""Privacy-aware selection: the paper's rule, Problem 1 solved exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, number
from dpcohort.errors import InputError
from dpcohort.selection.eta import Eta, resolve_eta
from dpcohort.selection.path import SelectionPath
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated
from dpcohort.selection.solver import Solution, solve_selection

__all__ = ["PrivacyAware"]


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

    Example:
        >>> PrivacyAware(bias_cap=0.2, floor=0.1)
        PrivacyAware(eta=None, bias_cap=0.2, floor=0.1, cap=1.0)
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
        floor, cap = self._bounds(problem)
        if self.bias_cap is None:
            eta = problem.eta("auto" if self.eta is None else self.eta)
            noise, linear = problem.costs(eta)
            solution = solve_selection(
                problem.unbiased, noise, linear_costs=linear, floor=floor, cap=cap
            )
            return self._selection(problem, solution, eta)
        path = SelectionPath(
            problem.unbiased,
            problem.noise_costs,
            linear_costs=problem.linear_costs,
            floor=floor,
            cap=cap,
        )
        solution = path.at_gap(self.bias_cap)
        if math.isfinite(solution.eta):
            return self._selection(problem, solution, solution.eta)
        return evaluated(self.name, solution.probabilities, problem, settings=self._settings())

    def _bounds(self, problem: SelectionProblem) -> tuple[FloatArray | None, FloatArray | None]:
        """Floor and cap for each client; None where they leave everything open."""
        floor = self.floor * problem.unbiased if self.floor > 0.0 else None
        return floor, np.full(problem.size, self.cap) if self.cap < 1.0 else None

    def _selection(self, problem: SelectionProblem, solution: Solution, eta: float) -> Selection:
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
        settings: dict[str, object] = {}
        if self.bias_cap is not None:
            settings["bias_cap"] = self.bias_cap
        else:
            settings["eta"] = "auto" if self.eta is None else self.eta
        if self.floor > 0.0:
            settings["floor"] = self.floor
        if self.cap < 1.0:
            settings["cap"] = self.cap
        return settings

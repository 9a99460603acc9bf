# SPDX-License-Identifier: Apache-2.0
"""Privacy-aware selection, the paper's rule (Problem 1 solved exactly), and rules close to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, float_array, number
from dpcohort.errors import InputError
from dpcohort.selection.path import SelectionPath
from dpcohort.selection.problem import (
    Eta,
    PlannedRule,
    Selection,
    SelectionProblem,
    evaluated,
    resolve_eta,
)
from dpcohort.selection.solver import Solution, solve_selection

__all__ = ["InverseNoise", "ParticipationCounts", "PaymentCap", "PrivacyAware"]


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


@dataclass(frozen=True, kw_only=True)
class InverseNoise(PlannedRule):
    """The limit of privacy-aware selection as eta grows: proportional to 1 / V_k.

    That is in the paper's noise model; with linear costs, clients too expensive to be worth a
    single draw get 0. With public clients the least noise is none: they take all probability,
    shared in proportion to their size, and nobody else is drawn.

    Example:
        >>> InverseNoise().name
        'inverse-noise'
    """

    name: ClassVar[str] = "inverse-noise"
    needs: ClassVar[str] = "sizes, budgets"
    leaks: ClassVar[str] = "budgets"
    reference: ClassVar[str] = "the paper (arXiv 2602.22633), Problem 1 as eta grows"

    def select(self, problem: SelectionProblem) -> Selection:
        """The probabilities of least noise."""
        path = SelectionPath(
            problem.unbiased, problem.noise_costs, linear_costs=problem.linear_costs
        )
        return evaluated(self.name, path.limit, problem, settings={})


#: The weight of the prices is searched between 0 and this, in units of the noise costs.
_MOST, _STEPS = 1e12, 80


@dataclass(frozen=True, kw_only=True)
class PaymentCap(PlannedRule):
    """Problem 1 with prices among its linear costs, so that a draw costs at most the cap.

    After JSAM (Xu, Zhang and Huang, arXiv 2602.21844), of which the abstract was read: selection
    and payment for privacy are chosen together under a budget, privacy-tolerant clients are
    preferred and the most sensitive ones excluded. Its mechanism (types, incentive constraints, a
    problem in three variables) is not built here. Ours is the part that selects: each client asks
    a public price a draw, and the smallest weight ``w`` is found with which the solution of
    Problem 1 under linear costs ``b + w price`` pays at most ``spend`` times what unbiased
    selection would pay. Linear costs exclude: whoever is too dear gets probability 0.

    It reads sizes, budgets and prices, which are public here, and shows who is left out.

    Attributes:
        spend: largest expected price of a draw, as a share of unbiased selection's.
        prices: of each client, at least 0; None for 1 / epsilon, and 0 for public clients.
        eta: weight of the noise, a number or ``"auto"``.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]), epsilon=np.array([0.1, 4.0]),
        ...     public=np.zeros(2, dtype=bool), noise_costs=np.array([0.01, 0.0]),
        ...     linear_costs=np.zeros(2), total_steps=100, smoothness=1.0,
        ... )
        >>> PaymentCap(spend=1.0).select(problem).probabilities.round(2)
        array([0.5, 0.5])
        >>> PaymentCap(spend=0.05).select(problem).probabilities.round(2)
        array([0., 1.])
    """

    name: ClassVar[str] = "payment-cap"
    needs: ClassVar[str] = "sizes, budgets, public prices"
    leaks: ClassVar[str] = "sizes, budgets, prices, who is left out"
    reference: ClassVar[str] = (
        "after JSAM: Xu et al., arXiv 2602.21844 (abstract read; the exclusion only, search ours)"
    )

    spend: float = 0.5
    prices: Sequence[float] | None = None
    eta: Eta = "auto"

    def __post_init__(self) -> None:
        number("spend", self.spend, above=0, at_most=1)
        if self.prices is not None:
            float_array("prices", self.prices, at_least=0)
        resolve_eta(self.eta, total_steps=1, smoothness=1.0)

    def select(self, problem: SelectionProblem) -> Selection:
        """The solution of Problem 1 that keeps the cap."""
        price = self._prices(problem)
        whole = float(price @ problem.unbiased)
        settings: dict[str, object] = {"spend": self.spend, "eta": self.eta}
        if self.prices is not None:
            settings["prices"] = [float(value) for value in self.prices]
        p = problem.unbiased if whole == 0.0 else self._within(problem, price, self.spend * whole)
        return evaluated(self.name, p, problem, settings=settings, eta=self.eta)

    def _within(self, problem: SelectionProblem, price: FloatArray, cap: float) -> FloatArray:
        least = float(price[problem.unbiased > 0.0].min())
        allowed = cap * (1 + 1e-12)  # equal prices: their weighted sum may round down
        if least > allowed:
            raise InputError(
                "spend",
                given=self.spend,
                allowed=f"at least {least / (cap / self.spend):.3g}",
                next_step="The cheapest client alone costs that much.",
            )
        noise, linear = problem.costs(problem.eta(self.eta))
        flat = np.zeros_like(noise) if linear is None else linear

        def solution(weight: float) -> FloatArray:
            costs = flat + weight * price / price.max()
            return solve_selection(problem.unbiased, noise, linear_costs=costs).probabilities

        p = solution(0.0)
        if float(price @ p) <= allowed:
            return p
        low, high = -12.0, float(np.log10(_MOST))
        p = solution(10.0**high)
        if float(price @ p) > cap:  # a cap that only the very cheapest meet
            p = np.where(price == least, problem.unbiased, 0.0)
            return np.asarray(p / p.sum(), dtype=np.float64)
        for _ in range(_STEPS):
            middle = (low + high) / 2.0
            tried = solution(10.0**middle)
            if float(price @ tried) <= cap:
                high, p = middle, tried
            else:
                low = middle
        return p

    def _prices(self, problem: SelectionProblem) -> FloatArray:
        if self.prices is None:
            return np.where(
                problem.public, 0.0, 1.0 / np.where(problem.public, 1.0, problem.epsilon)
            )
        prices = np.asarray(self.prices, dtype=np.float64)
        if prices.shape != (problem.size,):
            raise InputError(
                "shape of prices", given=prices.shape, allowed=f"({problem.size},), one a client"
            )
        return prices


@dataclass(frozen=True, kw_only=True)
class ParticipationCounts(PlannedRule):
    """Minimises ``h sum (p - p^u)^2 / p^u + sum a p^2 + b p`` over the probabilities.

    After DPFL-BCS (Ma et al., The Power of Bias, arXiv 2408.08642, IEEE TDSC 2025). From its
    abstract and public summaries: clients with heterogeneous budgets are selected with a bias, the
    number of times each takes part solves a convex problem that weighs noise against data that
    differ, and the problem's constants are estimated in a first stage. Its objective is in none of
    the texts that could be read. The objective here is ours: the noise of Problem 1 and, for data
    that differ, the chi-square distance to the unbiased probabilities, which is at least
    ``||p - p^u||_1^2``. With n draws the counts are ``n p``; systematic draws give each client its
    count up to rounding. The constant h is a setting, since estimating it would ask clients for
    gradients.

    With a multiplier nu for ``sum p = 1`` the solution is
    ``p_k = max(0, (2 h + nu - b_k) / (2 h / p^u_k + 2 a_k))``, so one number has to be found.
    Where Problem 1 leaves clients of middling noise exactly unbiased, this shifts everybody a
    little.

    It reads sizes and budgets, which are public here.

    Attributes:
        heterogeneity: h, how much data that differ count; large values give unbiased selection.
        eta: weight of the noise, a number or ``"auto"``.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]), epsilon=np.array([1.0, 8.0]),
        ...     public=np.zeros(2, dtype=bool), noise_costs=np.array([0.3, 0.0]),
        ...     linear_costs=np.zeros(2), total_steps=100, smoothness=1.0,
        ... )
        >>> ParticipationCounts(eta=10.0).select(problem).probabilities.round(4)
        array([0.2857, 0.7143])
    """

    name: ClassVar[str] = "participation-counts"
    needs: ClassVar[str] = "sizes, budgets"
    leaks: ClassVar[str] = "sizes, budgets"
    reference: ClassVar[str] = (
        "after DPFL-BCS: Ma et al., arXiv 2408.08642 (abstract read; the objective is ours)"
    )

    heterogeneity: float = 1.0
    eta: Eta = "auto"

    def __post_init__(self) -> None:
        number("heterogeneity", self.heterogeneity, above=0)
        resolve_eta(self.eta, total_steps=1, smoothness=1.0)

    def select(self, problem: SelectionProblem) -> Selection:
        """The probabilities of least squared bias and noise."""
        noise, linear = problem.costs(problem.eta(self.eta))
        flat = np.zeros_like(noise) if linear is None else linear
        p = _water_level(problem.unbiased, noise / self.heterogeneity, flat / self.heterogeneity)
        settings: dict[str, object] = {"heterogeneity": self.heterogeneity, "eta": self.eta}
        return evaluated(self.name, p, problem, settings=settings, eta=self.eta)


def _water_level(u: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """The p of least ``sum (p - u)^2 / u + a p^2 + b p`` with sum 1; u = 0 stays 0."""
    from scipy.optimize import brentq

    with np.errstate(divide="ignore", over="ignore"):
        slope = np.where(u > 0.0, 1.0 / (2.0 / u + 2.0 * a), 0.0)
    flat = np.where(np.isfinite(b), b, 0.0)
    slope = np.where(np.isfinite(b), slope, 0.0)

    def filled(level: float) -> FloatArray:
        return np.asarray(np.maximum(0.0, level - flat) * slope, dtype=np.float64)

    # At this level somebody alone holds everything; nobody holds less than at level 0.
    enough = float((flat[slope > 0.0] + 1.0 / slope[slope > 0.0]).min())
    level = enough
    if filled(enough).sum() > 1.0:  # not above by rounding: then it is the level
        excess = lambda v: filled(v).sum() - 1.0  # noqa: E731
        level = float(brentq(excess, 0.0, enough, xtol=1e-14 * enough, rtol=1e-14))
    p = filled(level)
    return np.asarray(p / p.sum(), dtype=np.float64)

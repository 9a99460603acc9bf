# SPDX-License-Identifier: Apache-2.0
"""Payment cap (after JSAM): Problem 1 where draws have a price and dear clients are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, float_array, number
from dpcohort.errors import InputError
from dpcohort.selection.eta import Eta, resolve_eta
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated
from dpcohort.selection.solver import solve_selection

__all__ = ["PaymentCap"]

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
        if least > cap:
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
        if float(price @ p) <= cap:
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

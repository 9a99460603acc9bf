# SPDX-License-Identifier: Apache-2.0
"""All selections from unbiased to least noise, as the weight eta of the noise grows.

With costs ``a = eta c`` the order of the marginal costs ``c_k u_k`` does not depend on eta, so one
sort serves the whole path. A point of it can be asked for by eta (:meth:`SelectionPath.at`) or by
the bias ``||p - u||_1`` one is ready to accept (:meth:`SelectionPath.at_gap`); the two name the
same family, because ``y - x = 2 F`` can be solved for eta at any point:

    eta = 4 (Q + (y - x) G) / (y - x)^2,    thresholds x, y and Q per unit of eta.

At ``p = u`` this is the threshold eta_0 below which unbiased selection is optimal.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, number
from dpcohort.errors import InputError
from dpcohort.selection.instance import (
    LARGEST_COST,
    SMALLEST_COST,
    Costs,
    bounded_costs,
    checked_bound,
    checked_costs,
    checked_unbiased,
    objective_of,
    scaled_costs,
)
from dpcohort.selection.solver import (
    Solution,
    SortedCosts,
    assembled,
    certified,
    solve_selection,
    sort_out,
)
from dpcohort.selection.water_filling import fill, fill_to_gap

__all__ = ["SelectionPath"]


class SelectionPath:
    """The solutions of Problem 1 for every eta, for noise costs given per unit of eta.

    In the paper's noise model (no linear costs, floors or caps) everything comes from one sort.
    Otherwise the end points of the pieces depend on more than one order, and each point is solved
    for on its own, with the same exactness and certificate.

    Args:
        unbiased: p^u.
        noise_costs: ``c_k = D V_k`` per unit of eta.
        linear_costs: linear costs per unit of eta.
        floor: smallest probabilities.
        cap: largest probabilities.
        clipping_gap: g0.

    Example:
        >>> path = SelectionPath([0.5, 0.5], [1.0, 4.0])
        >>> round(path.threshold, 4)
        2.2222
        >>> path.at(2.0).probabilities
        array([0.5, 0.5])
        >>> solution = path.at_gap(0.2)
        >>> solution.probabilities.round(4), round(solution.eta, 4)
        (array([0.6, 0.4]), 4.8)
    """

    def __init__(
        self,
        unbiased: ArrayLike,
        noise_costs: ArrayLike,
        *,
        linear_costs: ArrayLike | None = None,
        floor: ArrayLike | None = None,
        cap: ArrayLike | None = None,
        clipping_gap: float = 0.0,
    ) -> None:
        self._unbiased = u = checked_unbiased(unbiased)
        self._noise = c = checked_costs("noise_costs", noise_costs, u.size)
        linear = None
        if linear_costs is not None:
            linear = checked_costs("linear_costs", linear_costs, u.size)
            linear = linear if linear.any() else None
        self._linear = linear
        self._floor, self._cap = checked_bound("floor", floor, u), checked_bound("cap", cap, u)
        self._clipping_gap = number("clipping_gap", clipping_gap, at_least=0, below=LARGEST_COST)
        #: The instance at eta = 1, infinite costs turned into caps at 0.
        self._costs, self._unavoidable = bounded_costs(
            u, c, linear, self._floor, self._cap, self._clipping_gap
        )
        self._one_sort = linear is None and floor is None and cap is None
        if self._one_sort:
            self._kinds = sort_out(u, c, self._clipping_gap)

    @cached_property
    def _sorted(self) -> SortedCosts:
        return SortedCosts.of(self._kinds.mass, self._kinds.noise, self._kinds.decided)

    @cached_property
    def threshold(self) -> float:
        """The largest eta at which unbiased selection is optimal, eta_0.

        ``4 (Q(u) + w g0) / w^2`` with w the spread of the marginal costs ``c_k u_k + b_k / 2``
        between the clients that could be lowered and those that could be raised; infinite if
        nobody would gain by moving, 0 if p = u is not allowed.
        """
        u, costs = self._unbiased, self._costs
        floor = np.zeros_like(u) if costs.floor is None else costs.floor
        cap = np.ones_like(u) if costs.cap is None else costs.cap
        if self._unavoidable or bool(((u < floor) | (u > cap)).any()):
            return 0.0
        marginal = costs.noise * u + (0.0 if costs.linear is None else 0.5 * costs.linear)
        lowerable, raisable = marginal[u > floor], marginal[u < cap]
        if lowerable.size == 0 or raisable.size == 0:
            return math.inf
        spread = float(lowerable.max()) - float(raisable.min())
        if spread <= 0.0:
            return math.inf
        return _eta_of(self._noise_at(u), spread, self._clipping_gap)

    @cached_property
    def limit(self) -> FloatArray:
        """The probabilities of least noise, which the path tends to as eta grows.

        They are proportional to 1/V_k in the paper's model; public clients take everything.
        """
        if self._one_sort:
            kinds = self._kinds
            if kinds.public is not None:
                p = assembled(self._unbiased, kinds, (0.0, 0.0))
            else:
                inverse = 1.0 / kinds.noise
                p = np.zeros_like(self._unbiased)
                p[slice(None) if kinds.finite is None else kinds.finite] = inverse / inverse.sum()
        else:
            costs = self._costs
            floor = np.zeros_like(self._unbiased) if costs.floor is None else costs.floor
            cap = np.ones_like(floor) if costs.cap is None else np.minimum(costs.cap, 1.0)
            p = fill(costs, floor, cap, half_width=0.0).probabilities
        p.setflags(write=False)
        return p

    @cached_property
    def maximum_gap(self) -> float:
        """The bias ``||p - u||_1`` in the limit of eta to infinity, the largest on the path."""
        return float(np.abs(self.limit - self._unbiased).sum())

    def at(self, eta: float) -> Solution:
        """The solution at one eta, with its certificate.

        Args:
            eta: weight of the noise, at least 0 and finite.
        """
        eta = number("eta", eta, at_least=0)
        moves = self._one_sort and eta > self.threshold and self._scales(eta)
        if not moves:
            linear = None if self._linear is None else scaled_costs(eta, self._linear)
            solution = solve_selection(
                self._unbiased,
                scaled_costs(eta, self._noise),
                linear_costs=linear,
                floor=self._floor,
                cap=self._cap,
                clipping_gap=self._clipping_gap,
            )
            return replace(solution, eta=eta)
        lower, upper = self._sorted.thresholds(eta)
        p = assembled(self._unbiased, self._kinds, (lower / eta, upper / eta))
        scaled = Costs(self._unbiased, eta * self._noise, clipping_gap=self._clipping_gap)
        return certified(p, scaled, (lower, upper), eta=eta)

    def at_gap(self, gap: float) -> Solution:
        """The least noise whose bias ``||p - u||_1`` is at most ``gap``, and the eta it belongs to.

        Args:
            gap: bias cap tau, at least 0.

        Returns:
            The solution at ``.eta``, the largest eta (exactly eta, where p is unique in eta) at
            which it is optimal. Where the cap does not bind, the limit of the path with eta
            infinite; its objective is then infinite unless only public clients are drawn.
        """
        gap = number("bias_cap", gap, at_least=0)
        if gap >= self.maximum_gap:
            return self._at_limit(self.limit)
        if self._one_sort:
            moved = 0.5 * gap
            if moved < self._kinds.decided.forced_mass:
                raise self._too_close(gap)
            lower, upper = self._sorted.prices_at(moved)
            p = assembled(self._unbiased, self._kinds, (lower, upper))
        else:
            filled = fill_to_gap(self._costs, gap)
            if filled is None:
                raise self._too_close(gap)
            p, lower, upper = filled
        bias = self._clipping_gap + float(np.abs(p - self._unbiased).sum())
        eta = _eta_of(self._noise_at(p), upper - lower, bias) if upper > lower else math.inf
        if eta > LARGEST_COST:
            return self._at_limit(p)
        scaled = self._costs._replace(
            noise=eta * self._costs.noise,
            linear=None if self._costs.linear is None else eta * self._costs.linear,
        )
        return certified(p, scaled, (eta * lower, eta * upper), self._unavoidable, eta)

    @cached_property
    def breakpoints(self) -> tuple[FloatArray, FloatArray]:
        """Points of the path for a plot: rising etas, and the bias ``||p - u||_1`` at each.

        In the paper's noise model, exactly the etas at which a client begins to move. Otherwise 65
        points evenly spaced in the bias.
        """
        if self._one_sort:
            if self._kinds.mass.size == 0:
                return np.zeros(0), np.zeros(0)
            eta, moved = self._sorted.turning_points()
            return eta, 2.0 * moved
        least = self.at(0.0)
        start = float(np.abs(least.probabilities - self._unbiased).sum())
        if self.maximum_gap - start < 1e-12:  # nothing but the forced bias
            return np.array([self.threshold]), np.array([start])
        gaps = np.linspace(start, self.maximum_gap, 66)[1:-1]
        solutions = [self.at_gap(float(gap)) for gap in gaps]
        etas = np.array([solution.eta for solution in solutions])
        finite = np.isfinite(etas)
        etas = np.concatenate([[self.threshold], etas[finite]])
        return np.maximum.accumulate(etas), np.concatenate([[start], gaps[finite]])

    def _noise_at(self, p: FloatArray) -> float:
        """Q per unit of eta."""
        bare = objective_of(p, self._costs._replace(unbiased=p, clipping_gap=0.0))
        return bare * bare

    def _scales(self, eta: float) -> bool:
        """Whether no cost leaves the range of safe arithmetic when multiplied by eta."""
        finite = self._kinds.noise
        if finite.size == 0:
            return False
        smallest, largest = eta * float(finite.min()), eta * float(finite.max())
        return smallest >= SMALLEST_COST and largest <= LARGEST_COST

    def _at_limit(self, p: FloatArray) -> Solution:
        """A selection of least noise, optimal only as eta goes to infinity."""
        bias = self._clipping_gap + float(np.abs(p - self._unbiased).sum())
        objective = math.inf if self._noise_at(p) > 0.0 else 2.0 * bias
        p.setflags(write=False)
        return Solution(
            probabilities=p,
            objective=objective,
            lower_bound=objective,
            gap=0.0,
            thresholds=(math.inf, math.inf),
            eta=math.inf,
        )

    def _too_close(self, gap: float) -> InputError:
        return InputError(
            "bias_cap",
            given=gap,
            allowed="at least the bias that floors, caps and infinite costs force",
            next_step="Raise the bias cap, or loosen the floor or cap.",
        )


def _eta_of(noise: float, width: float, bias: float) -> float:
    """The eta at which y - x = 2 F, for Q and y - x per unit of eta."""
    with np.errstate(over="ignore"):
        return float(4.0 * (noise / np.float64(width) + bias) / width)

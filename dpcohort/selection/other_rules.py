# SPDX-License-Identifier: Apache-2.0
"""Planned rules beside the paper's; :mod:`dpcohort.selection.rules` has them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, float_array, number
from dpcohort.errors import InputError
from dpcohort.selection.problem import (
    Eta,
    PlannedRule,
    Selection,
    SelectionProblem,
    evaluated,
    resolve_eta,
)
from dpcohort.selection.solver import solve_selection


@dataclass(frozen=True, kw_only=True)
class Uniform(PlannedRule):
    """Every client with probability 1 / N.

    Example:
        >>> Uniform().name
        'uniform'
    """

    name: ClassVar[str] = "uniform"
    needs: ClassVar[str] = "nothing"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "the simplest rule there is"

    def select(self, problem: SelectionProblem) -> Selection:
        """The uniform probabilities."""
        p = np.full(problem.size, 1.0 / problem.size)
        return evaluated(self.name, p, problem, settings={})


@dataclass(frozen=True, kw_only=True)
class Unbiased(PlannedRule):
    """Selection in proportion to size, p^s = p^u: federated averaging's own rule.

    Example:
        >>> Unbiased().name
        'unbiased'
    """

    name: ClassVar[str] = "unbiased"
    needs: ClassVar[str] = "sizes"
    leaks: ClassVar[str] = "sizes"
    reference: ClassVar[str] = (
        "federated averaging: McMahan et al., AISTATS 2017 (general knowledge)"
    )

    def select(self, problem: SelectionProblem) -> Selection:
        """The unbiased probabilities."""
        return evaluated(self.name, problem.unbiased, problem, settings={})


@dataclass(frozen=True, kw_only=True)
class EpsilonProportional(PlannedRule):
    """Probability proportional to epsilon, whatever the size.

    Attributes:
        public_epsilon: the epsilon a public client counts with. None: the largest among the other
            clients (1 if everybody is public, so all are equal).

    Example:
        >>> EpsilonProportional()
        EpsilonProportional(public_epsilon=None)
    """

    name: ClassVar[str] = "epsilon-proportional"
    needs: ClassVar[str] = "budgets"
    leaks: ClassVar[str] = "budgets"
    reference: ClassVar[str] = "a common heuristic"

    public_epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.public_epsilon is not None:
            number("public_epsilon", self.public_epsilon, above=0)

    def select(self, problem: SelectionProblem) -> Selection:
        """Probabilities proportional to epsilon."""
        private = problem.epsilon[~problem.public]
        stand_in = self.public_epsilon
        if stand_in is None:
            stand_in = float(private.max()) if private.size else 1.0
        weights = np.where(problem.public, stand_in, problem.epsilon)
        weights = weights / weights.max()  # epsilons near the largest double would overflow
        settings = {} if self.public_epsilon is None else {"public_epsilon": self.public_epsilon}
        return evaluated(self.name, weights / weights.sum(), problem, settings=settings)


@dataclass(frozen=True, kw_only=True)
class MinimumEpsilon(Unbiased):
    """Unbiased selection, with all noise calibrated to the smallest epsilon of the population.

    What one does without heterogeneous budgets: one epsilon that suits everybody. The probabilities
    are the unbiased ones; what differs is the noise, through :meth:`effective_epsilon`. Public
    clients stay public. Objective and gap are those of the clients' own noise costs, so they
    flatter this rule: the noise in force is larger.

    Example:
        >>> MinimumEpsilon().name
        'minimum-epsilon'
    """

    name: ClassVar[str] = "minimum-epsilon"
    needs: ClassVar[str] = "sizes, budgets"
    leaks: ClassVar[str] = "sizes"
    reference: ClassVar[str] = "what one does without heterogeneous budgets"

    def effective_epsilon(self, problem: SelectionProblem) -> FloatArray:
        """The smallest epsilon for every client; NaN for public ones."""
        private = problem.epsilon[~problem.public]
        smallest = float(private.min()) if private.size else np.nan
        return np.where(problem.public, np.nan, smallest)


@dataclass(frozen=True, kw_only=True)
class Threshold(PlannedRule):
    """Clients with epsilon at least ``threshold``, and all public ones, in proportion to size.

    Attributes:
        threshold: the smallest epsilon that takes part.

    Example:
        >>> Threshold(threshold=1.0)
        Threshold(threshold=1.0)
    """

    name: ClassVar[str] = "threshold"
    needs: ClassVar[str] = "sizes, budgets, a threshold"
    leaks: ClassVar[str] = "who is below the threshold"
    reference: ClassVar[str] = "Cyffers and Ziani, arXiv 2605.13503 (idea; abstract read)"

    threshold: float

    def __post_init__(self) -> None:
        number("threshold", self.threshold, above=0)

    def select(self, problem: SelectionProblem) -> Selection:
        """The unbiased probabilities of the clients that take part."""
        p = np.where(_rank(problem) >= self.threshold, problem.unbiased, 0.0)
        total = float(p.sum())
        if total == 0.0:
            private = problem.epsilon[~problem.public]
            largest = f"{float(private.max()):g}" if private.size else "not defined"
            raise InputError(
                "threshold",
                given=self.threshold,
                allowed="small enough for somebody to take part",
                next_step=f"The largest epsilon among the {problem.size} clients is {largest}.",
            )
        return evaluated(self.name, p / total, problem, settings={"threshold": self.threshold})


@dataclass(frozen=True, kw_only=True)
class BestThreshold(PlannedRule):
    """Clients with epsilon at least t, in proportion to size, for the t of least objective.

    For mean estimation, full personalisation of budgets gains little over a well-chosen threshold
    (Cyffers and Ziani, arXiv 2605.13503; abstract read). There one effective budget is chosen; here
    each client that stays keeps its own epsilon, and t minimises the objective of Problem 1 over
    all thresholds. With the clients sorted by epsilon, running sums give the objective at
    every t at once: of kept mass M it is ``G + sqrt(G^2 + Q)`` with ``G = 2 (1 - M)`` and
    ``Q = sum a_k u_k^2 / M^2 + sum b_k u_k / M``. Public clients always stay. Of thresholds that
    are equally good the one that keeps most clients is taken.

    It reads sizes and epsilons, which are public here.

    Attributes:
        eta: weight of the noise, a number or ``"auto"``.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.1, 0.5, 0.4]), epsilon=np.array([0.1, 4.0, 8.0]),
        ...     public=np.zeros(3, dtype=bool), noise_costs=np.array([90.0, 0.1, 0.1]),
        ...     linear_costs=np.zeros(3), total_steps=100, smoothness=1.0,
        ... )
        >>> rule = BestThreshold()
        >>> rule.threshold(problem)
        4.0
        >>> rule.select(problem).probabilities.round(4)
        array([0.    , 0.5556, 0.4444])
    """

    name: ClassVar[str] = "best-threshold"
    needs: ClassVar[str] = "sizes, budgets"
    leaks: ClassVar[str] = "who is below the threshold"
    reference: ClassVar[str] = (
        "Cyffers and Ziani, arXiv 2605.13503 (idea; abstract read); the search is ours"
    )

    eta: Eta = "auto"

    def __post_init__(self) -> None:
        resolve_eta(self.eta, total_steps=1, smoothness=1.0)

    def select(self, problem: SelectionProblem) -> Selection:
        """The unbiased probabilities of the clients at or above the best threshold."""
        p = np.where(_rank(problem) >= self.threshold(problem), problem.unbiased, 0.0)
        settings = {"eta": self.eta}
        return evaluated(self.name, p / p.sum(), problem, settings=settings, eta=self.eta)

    def threshold(self, problem: SelectionProblem) -> float:
        """The smallest epsilon that takes part; infinite if only public clients do."""
        rank = _rank(problem)
        order = np.argsort(-rank, kind="stable")
        objective = self._objectives(problem, order)
        ordered = rank[order]
        # A threshold can only lie between different epsilons.
        ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), rank.size - 1)
        best = np.flatnonzero(objective[ends] == objective[ends].min())[-1]
        return float(ordered[ends[best]])

    def _objectives(self, problem: SelectionProblem, order: np.ndarray) -> FloatArray:
        """The objective of Problem 1 if the first 1, 2, ... clients of the order take part."""
        noise, linear = problem.costs(problem.eta(self.eta))
        u = problem.unbiased
        with np.errstate(over="ignore", invalid="ignore"):
            quadratic = np.where(u > 0.0, noise * u * u, 0.0)
            flat = np.where(u > 0.0, linear * u, 0.0)
            mass = np.cumsum(u[order])
            kept = np.where(mass > 0.0, mass, 1.0)
            total = np.cumsum(quadratic[order]) / kept / kept + np.cumsum(flat[order]) / kept
        # Nobody with any mass can take part alone.
        gap = 2.0 * np.clip(1.0 - mass, 0.0, 1.0)
        return np.where(mass > 0.0, gap + np.hypot(gap, np.sqrt(total)), math.inf)


def _rank(problem: SelectionProblem) -> FloatArray:
    """Epsilon of each client, infinite for public ones."""
    return np.where(problem.public, math.inf, problem.epsilon)


@dataclass(frozen=True, kw_only=True)
class GradientBound(PlannedRule):
    """Probability proportional to ``p^u_k G_k / sqrt(t_k)``: gradient bound G_k, round time t_k.

    The sampling of Luo et al. (adaptive client sampling, INFOCOM 2022; arXiv 2404.13804). Of that
    paper the abstract was read; the formulas follow from its weights. With K draws and importance
    weights ``p^u_k / (K p_k)``, the variance of the result is at most
    ``sum (p^u_k G_k)^2 / p_k / K``, least at ``p_k`` proportional to ``p^u_k G_k`` by
    Cauchy-Schwarz. If rounds take as long as their draws together, the time to a given variance is
    proportional to ``(sum p_k t_k) (sum (p^u_k G_k)^2 / p_k)``, least, by Cauchy-Schwarz again, at
    ``p^u_k G_k / sqrt(t_k)``. It is meant for importance-compensated aggregation; with the plain
    mean it is biased.

    They learn G_k from reported norms, which tells of the data. Here it must be public. Every
    gradient is clipped to the same C, so without knowing better G_k is the same for all, and with
    equal times this is unbiased selection. Times must be public too; a time that grows with the
    records that happen to be drawn is not.

    Attributes:
        bounds: G_k of each client; None for equal bounds.
        round_times: t_k of each client, in any unit; None for equal times.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]), epsilon=np.array([1.0, 1.0]),
        ...     public=np.zeros(2, dtype=bool), noise_costs=np.array([1.0, 1.0]),
        ...     linear_costs=np.zeros(2), total_steps=100, smoothness=1.0,
        ... )
        >>> GradientBound(bounds=(3.0, 1.0)).select(problem).probabilities
        array([0.75, 0.25])
        >>> GradientBound(round_times=(9.0, 1.0)).select(problem).probabilities
        array([0.25, 0.75])
    """

    name: ClassVar[str] = "gradient-bound"
    needs: ClassVar[str] = "sizes, public bounds G_k, public round times"
    leaks: ClassVar[str] = "sizes, bounds, times"
    reference: ClassVar[str] = "Luo et al., arXiv 2404.13804 (abstract read; formula derived)"

    bounds: Sequence[float] | None = None
    round_times: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for field in ("bounds", "round_times"):
            if getattr(self, field) is not None:
                float_array(field, getattr(self, field), above=0)

    def select(self, problem: SelectionProblem) -> Selection:
        """Probabilities proportional to size times bound, over the root of the time."""
        p = problem.unbiased.copy()
        settings: dict[str, object] = {}
        if self.bounds is not None:
            bounds = _column("bounds", self.bounds, problem.size)
            # Dividing first keeps products of huge bounds in range.
            p = p * (bounds / bounds.max())
            settings["bounds"] = bounds.tolist()
        if self.round_times is not None:
            times = _column("round_times", self.round_times, problem.size)
            p = p * np.sqrt(times.min() / times)
            settings["round_times"] = times.tolist()
        return evaluated(self.name, p / p.sum(), problem, settings=settings)


def _column(field: str, values: Sequence[float], size: int) -> FloatArray:
    column = np.asarray(values, dtype=np.float64)
    if column.shape != (size,):
        raise InputError(
            f"shape of {field}", given=column.shape, allowed=f"({size},), one a client"
        )
    return column


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
        return evaluated(self.name, problem.path().limit, problem, settings={})


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
        public = problem.public
        price = np.where(public, 0.0, 1.0 / np.where(public, 1.0, problem.epsilon))
        if self.prices is not None:
            price = _column("prices", self.prices, problem.size)
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

        def solution(weight: float) -> FloatArray:
            costs = linear + weight * price / price.max()
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
        p = _water_level(problem.unbiased, noise / self.heterogeneity, linear / self.heterogeneity)
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

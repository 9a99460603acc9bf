# SPDX-License-Identifier: Apache-2.0
"""Best threshold: threshold selection with the threshold that Problem 1 likes best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.selection.eta import Eta, resolve_eta
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["BestThreshold"]


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
        settings: dict[str, object] = {"eta": self.eta}
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
            flat = np.zeros_like(u) if linear is None else np.where(u > 0.0, linear * u, 0.0)
            mass = np.cumsum(u[order])
            kept = np.where(mass > 0.0, mass, 1.0)
            total = np.cumsum(quadratic[order]) / kept / kept + np.cumsum(flat[order]) / kept
        # Nobody with any mass can take part alone.
        gap = 2.0 * np.clip(1.0 - mass, 0.0, 1.0)
        return np.where(mass > 0.0, gap + np.hypot(gap, np.sqrt(total)), math.inf)


def _rank(problem: SelectionProblem) -> FloatArray:
    """Epsilon of each client, infinite for public ones."""
    return np.where(problem.public, math.inf, problem.epsilon)

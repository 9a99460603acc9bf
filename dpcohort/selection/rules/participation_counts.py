# SPDX-License-Identifier: Apache-2.0
"""Participation counts (after DPFL-BCS): as often as noise and a squared bias make best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, number
from dpcohort.selection.eta import Eta, resolve_eta
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["ParticipationCounts"]


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
    level = brentq(lambda v: filled(v).sum() - 1.0, 0.0, enough, xtol=1e-14 * enough, rtol=1e-14)
    p = filled(float(level))
    return np.asarray(p / p.sum(), dtype=np.float64)

# SPDX-License-Identifier: Apache-2.0
"""Planned rules beside the paper's; :mod:`dpcohort.selection._rules` has them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, number
from dpcohort.errors import InputError
from dpcohort.selection._problem import (
    Eta,
    PlannedRule,
    Selection,
    SelectionProblem,
    evaluated,
    resolve_eta,
)


@dataclass(frozen=True, kw_only=True)
class Uniform(PlannedRule):
    """Every client with probability 1 / N."""

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
    """Selection in proportion to size, p^s = p^u: federated averaging's own rule."""

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
    """

    name: ClassVar[str] = "threshold"
    needs: ClassVar[str] = "sizes, budgets, a threshold"
    leaks: ClassVar[str] = "who is below the threshold"
    reference: ClassVar[str] = "a cut-off, set by hand"

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

    Each client that stays keeps its own epsilon, and t minimises the objective of Problem 1 over
    all thresholds. With the clients sorted by epsilon, running sums give the objective at every t
    at once: of kept mass M it is ``G + sqrt(G^2 + Q)`` with ``G = 2 (1 - M)`` and
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
    reference: ClassVar[str] = "ours: a cut-off, searched under the objective of Problem 1"

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
class InverseNoise(PlannedRule):
    """The limit of privacy-aware selection as eta grows: proportional to 1 / V_k.

    That is in the paper's noise model; with linear costs, clients too expensive to be worth a
    single draw get 0. With public clients the least noise is none: they take all probability,
    shared in proportion to their size, and nobody else is drawn.
    """

    name: ClassVar[str] = "inverse-noise"
    needs: ClassVar[str] = "sizes, budgets"
    leaks: ClassVar[str] = "budgets"
    reference: ClassVar[str] = "the paper (arXiv 2602.22633), Problem 1 as eta grows"

    def select(self, problem: SelectionProblem) -> Selection:
        """The probabilities of least noise."""
        return evaluated(self.name, problem.path().limit, problem, settings={})

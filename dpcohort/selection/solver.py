# SPDX-License-Identifier: Apache-2.0
"""Problem 1 of the paper, solved exactly, with a proof of how good the answer is.

    minimise  G + sqrt(G^2 + Q),   G = g0 + ||p - u||_1,   Q = sum a_k p_k^2 + b_k p_k,
    over      sum p = 1,  floor <= p <= cap.

The paper has g0 = 0, b = 0, floor = 0 and cap = 1, and ``a_k = eta D V_k``. That case has a closed
form once it is known who moves (:mod:`.active_set`); the others are solved by water filling
(:mod:`.water_filling`). Whoever found the answer, :mod:`.certificate` bounds its error from the
probabilities alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import BoolArray, FloatArray, number
from dpcohort.errors import InputError
from dpcohort.selection.active_set import Fixed, find_thresholds
from dpcohort.selection.instance import (
    LARGEST_COST,
    SMALLEST_COST,
    Certificate,
    Costs,
    bounded_costs,
    certify,
    checked_bound,
    checked_costs,
    checked_unbiased,
    pieces,
)
from dpcohort.selection.water_filling import solve_by_filling

__all__ = ["Solution", "solve_selection"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """Optimal probabilities with the certificate of their optimality.

    Attributes:
        probabilities: p, read-only.
        objective: F(p).
        lower_bound: a proved lower bound on the optimum, ``objective - gap``.
        gap: the most by which ``objective`` can exceed the optimum.
        thresholds: (x, y) with ``y - x = 2 F``: clients whose marginal cost ``a u + b/2`` is below
            x are raised above u, those above y are lowered.
        eta: the factor by which the costs given were multiplied: 1, except along a path.
    """

    probabilities: FloatArray
    objective: float
    lower_bound: float
    gap: float
    thresholds: tuple[float, float]
    eta: float = 1.0


def solve_selection(
    unbiased: ArrayLike,
    noise_costs: ArrayLike,
    *,
    linear_costs: ArrayLike | None = None,
    floor: ArrayLike | None = None,
    cap: ArrayLike | None = None,
    clipping_gap: float = 0.0,
) -> Solution:
    """The selection probabilities that minimise the persistent error of Theorem 2 (Problem 1).

    Args:
        unbiased: p^u, proportional to the sizes; sums to 1 (up to 1e-9).
        noise_costs: ``a_k = eta D V_k``, at least 0; 0 for a public client, infinity for one that
            must not be drawn.
        linear_costs: ``b_k``, at least 0; what a schedule adds beyond the paper's noise.
        floor: smallest probabilities, one number or one for each client.
        cap: largest probabilities, one number or one for each client.
        clipping_gap: g0, the part of G that selection cannot change; the paper drops it.

    Returns:
        A :class:`Solution`. Probability that goes to public clients is shared among them in
        proportion to ``unbiased`` (any other sharing has the same objective). The objective is
        infinite only if a floor forces a client with infinite cost to be drawn.

    Raises:
        InputError: for values out of range, shapes that differ, or bounds that nothing meets.

    Example:
        >>> solution = solve_selection([0.5, 0.5], [1.0, 400.0])
        >>> solution.probabilities.round(4)
        array([0.9856, 0.0144])
        >>> solution.gap < 1e-14 * solution.objective
        True
    """
    u = checked_unbiased(unbiased)
    a = checked_costs("noise_costs", noise_costs, u.size)
    gap = number("clipping_gap", clipping_gap, at_least=0, below=LARGEST_COST)
    b = None if linear_costs is None else checked_costs("linear_costs", linear_costs, u.size)
    if (b is None or not b.any()) and floor is None and cap is None:
        answer = _solve_pure(u, a, gap)
    else:
        answer = _solve_bounded(
            u, a, b, checked_bound("floor", floor, u), checked_bound("cap", cap, u), gap
        )
    return solution_of(answer)


class Answer(NamedTuple):
    """Probabilities, prices and certificate, before they become a :class:`Solution`."""

    probabilities: FloatArray
    thresholds: tuple[float, float]
    certificate: Certificate


def solution_of(answer: Answer, eta: float = 1.0) -> Solution:
    """The public face of an answer; its probabilities become read-only."""
    answer.probabilities.setflags(write=False)
    return Solution(
        probabilities=answer.probabilities,
        objective=answer.certificate.objective,
        lower_bound=answer.certificate.lower_bound,
        gap=answer.certificate.gap,
        thresholds=answer.thresholds,
        eta=eta,
    )


class Kinds(NamedTuple):
    """Clients by the kind of their noise cost; those with finite positive costs on their own."""

    mass: FloatArray  # u and a of the clients with finite positive costs
    noise: FloatArray
    finite: BoolArray | None  # which those are; None if everybody
    public: BoolArray | None  # None if nobody
    fixed: Fixed


def sort_out(u: FloatArray, a: FloatArray, gap: float) -> Kinds:
    """Tells public clients and infinite costs from the rest."""
    if float(a.min()) >= SMALLEST_COST and float(a.max()) <= LARGEST_COST:
        return Kinds(u, a, None, None, Fixed(clipping_gap=gap))
    barred, public = a > LARGEST_COST, a < SMALLEST_COST
    if barred.all():
        raise InputError.because(
            f"noise_costs are infinite for all {a.size} clients, so nobody can be selected; "
            f"at least one must be below {LARGEST_COST:g}. Check for clients without data or "
            "with epsilon = 0."
        )
    some_public = bool(public.any())
    fixed = Fixed(forced_mass=float(u[barred].sum()), public=some_public, clipping_gap=gap)
    finite = ~(barred | public)
    return Kinds(u[finite], a[finite], finite, public if some_public else None, fixed)


def assembled(u: FloatArray, kinds: Kinds, thresholds: tuple[float, float] | None) -> FloatArray:
    """Probabilities of everybody from the thresholds; None keeps those with finite costs at u."""
    mass, noise = kinds.mass, kinds.noise
    p = mass.copy() if thresholds is None else np.empty_like(mass)
    if thresholds is not None:
        lower, upper = thresholds
        for part in pieces(mass.size):
            taken = p[part]
            np.divide(upper, noise[part], out=taken)
            np.minimum(taken, mass[part], out=taken)
            if not kinds.fixed.public:
                np.maximum(taken, lower / noise[part], out=taken)
    if kinds.finite is None:
        return p
    everybody = np.zeros_like(u)
    everybody[kinds.finite] = p
    if kinds.public is not None:
        # Mass that leaves the others, not 1 minus what they keep: no cancellation.
        moved = kinds.fixed.forced_mass
        for part in pieces(mass.size):
            moved += float((mass[part] - p[part]).sum())
        everybody[kinds.public] = _shared(u[kinds.public], moved)
    return everybody


def _solve_pure(u: FloatArray, a: FloatArray, gap: float) -> Answer:
    """Problem 1 as printed (with a clipping gap)."""
    kinds = sort_out(u, a, gap)
    found = find_thresholds(kinds.mass, kinds.noise, kinds.fixed) if kinds.mass.size else None
    thresholds = None if found is None else (found.lower, found.upper)
    p = assembled(u, kinds, thresholds)
    proved = certify(p, Costs(u, a, clipping_gap=gap))
    if thresholds is None:
        # Nobody moves: any pair of thresholds 2 F apart around all marginal costs will do.
        lower = 0.0
        if kinds.public is None:
            marginal = kinds.mass * kinds.noise
            lower = 0.5 * float(marginal.min() + marginal.max()) - proved.objective
        thresholds = (lower, lower + 2.0 * proved.objective)
    return Answer(p, thresholds, proved)


def _shared(u: FloatArray, moved: float) -> FloatArray:
    """Public probabilities: u scaled up, or equal shares if u is 0 for all of them."""
    total = float(u.sum())
    if total == 0.0:
        return np.full_like(u, moved / u.size)
    return u * (1.0 + moved / total)


def _solve_bounded(
    u: FloatArray,
    a: FloatArray,
    b: FloatArray | None,
    floor: FloatArray | None,
    cap: FloatArray | None,
    gap: float,
) -> Answer:
    """Problem 1 with linear costs, floors or caps."""
    costs, unavoidable = bounded_costs(u, a, b, floor, cap, gap)
    found = solve_by_filling(costs)
    certificate = certify(found.probabilities, costs)
    if unavoidable:
        certificate = Certificate(math.inf, math.inf, 0.0)
    return Answer(found.probabilities, (found.lower, found.upper), certificate)

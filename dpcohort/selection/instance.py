# SPDX-License-Identifier: Apache-2.0
"""An instance of Problem 1: its checked input, its objective, and how far a choice is from best."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array
from dpcohort.errors import InputError

__all__ = [
    "LARGEST_COST",
    "SMALLEST_COST",
    "Certificate",
    "Costs",
    "bounded_costs",
    "certify",
    "checked_bound",
    "checked_costs",
    "checked_unbiased",
    "objective_of",
    "pieces",
    "scaled_costs",
]


#: Smaller costs count as 0, which changes F by less than 1e-139.
SMALLEST_COST = 1e-280


def checked_unbiased(unbiased: ArrayLike) -> FloatArray:
    """P^u as a float64 array that sums to 1; sums within 1e-9 of 1 are scaled.

    Example:
        >>> checked_unbiased([0.25, 0.75])
        array([0.25, 0.75])
    """
    u = _as_floats("unbiased", unbiased)
    if u.ndim != 1 or u.size == 0:
        raise InputError(
            "unbiased", given=u.shape, allowed="one probability for each client, at least one"
        )
    if not float(u.min()) >= 0.0:
        float_array("unbiased", u, at_least=0)
    total = float(u.sum())
    if not abs(total - 1.0) <= 1e-9:
        float_array("unbiased", u, at_least=0, at_most=1)
        raise InputError(
            "sum of unbiased",
            given=total,
            allowed="1 (up to 1e-9)",
            next_step="Divide the sizes by their sum.",
        )
    return u if abs(total - 1.0) <= 2.0**-51 else u / total


def checked_costs(field: str, costs: ArrayLike, size: int) -> FloatArray:
    """Costs as a float64 array of the right shape, at least 0 and perhaps infinite.

    Example:
        >>> checked_costs("noise_costs", [0, 2, np.inf], 3)
        array([ 0.,  2., inf])
    """
    array = _as_floats(field, costs)
    if array.shape != (size,):
        raise InputError(
            f"shape of {field}", given=array.shape, allowed=f"({size},), as that of unbiased"
        )
    if not float(array.min()) >= 0.0:
        float_array(field, array, at_least=0, allow_infinite=True)
    return array


def checked_bound(field: str, bound: ArrayLike | None, u: FloatArray) -> FloatArray | None:
    """A floor or cap for every client, from one number or one for each; None if there is none.

    Example:
        >>> checked_bound("cap", 0.75, np.array([0.5, 0.5]))
        array([0.75, 0.75])
    """
    if bound is None:
        return None
    array = float_array(field, bound, at_least=0, allow_infinite=field == "cap")
    if array.ndim == 0:
        return np.full_like(u, float(array))
    if array.shape != u.shape:
        raise InputError(
            f"shape of {field}",
            given=array.shape,
            allowed=f"one number, or ({u.size},) as that of unbiased",
        )
    return array


def _as_floats(field: str, values: ArrayLike) -> FloatArray:
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        return values
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(field, given=values, allowed="numbers only") from None


def bounded_costs(
    u: FloatArray,
    a: FloatArray,
    b: FloatArray | None,
    floor: FloatArray | None,
    cap: FloatArray | None,
    gap: float,
) -> tuple[Costs, bool]:
    """The instance with infinite costs turned into caps, and whether a floor forces one of them."""
    a = np.where(a < SMALLEST_COST, 0.0, a)
    barred = a > LARGEST_COST
    if b is not None:
        b = np.where(b < SMALLEST_COST, 0.0, b)
        barred |= b > LARGEST_COST
    _check_bounds(floor, cap, u.size)
    unavoidable = False
    if barred.any():
        lowest = np.zeros_like(u) if floor is None else floor
        unavoidable = bool((lowest[barred] > 0.0).any())
        cap = np.where(barred, lowest, 1.0 if cap is None else cap)
        if float(cap.sum()) < 1.0 - 1e-12:
            raise InputError.because(
                f"{np.count_nonzero(barred)} of {u.size} clients have infinite costs, and the caps "
                f"of the others sum to {float(cap.sum()):g}, which is below 1. Raise the caps or "
                "check for clients without data or with epsilon = 0."
            )
        a = np.where(barred, 0.0, a)
        b = None if b is None else np.where(barred, 0.0, b)
    return Costs(u, a, b, floor, cap, gap), unavoidable


def _check_bounds(floor: FloatArray | None, cap: FloatArray | None, size: int) -> None:
    if floor is not None and float(floor.sum()) > 1.0 + 1e-12:
        raise InputError(
            "floor",
            given=float(floor.sum()),
            allowed=f"at most 1 when summed over the {size} clients",
            next_step="No probabilities can meet it; lower the floor.",
        )
    if cap is not None and float(cap.sum()) < 1.0 - 1e-12:
        raise InputError(
            "cap",
            given=float(cap.sum()),
            allowed=f"at least 1 when summed over the {size} clients",
            next_step="No probabilities can meet it; raise the cap.",
        )
    if floor is not None and cap is not None and bool((floor > cap).any()):
        k = int(np.flatnonzero(floor > cap)[0])
        raise InputError(
            f"floor[{k}]",
            given=float(floor[k]),
            allowed=f"at most cap[{k}] = {float(cap[k]):g}",
        )


def scaled_costs(factor: float, costs: FloatArray) -> FloatArray:
    """Costs times a factor; an infinite cost stays infinite where the factor is 0.

    Example:
        >>> scaled_costs(0.0, np.array([2.0, np.inf]))
        array([ 0., inf])
    """
    if factor > 0.0:
        with np.errstate(over="ignore"):
            return factor * costs
    return np.where(np.isinf(costs), np.inf, 0.0)


# The certificate of a selection: its objective, and a proved lower bound on the optimum.
#
# Both are computed from the probabilities alone, so they hold whoever found them. Write
# ``G = g0 + ||p - u||_1``, ``Q = sum a p^2 + b p`` and ``F = G + sqrt(G^2 + Q)`` (Problem 1). For
# every f > 0, ``F(p) <= f`` if and only if ``Q + 2 f G <= f^2``; hence the optimum is where
# ``H(f) = min_p Q + 2 f G`` meets ``f^2``. H is concave and ``H(0) >= 0``. If Lagrangian duality at
# f = F(p) shows ``H(F) >= F^2 - delta``, then ``H(f) >= f (F - delta / F)`` for all f <= F, so
#
#     F(p) - delta / F(p) <= F* <= F(p).
#
# ``delta`` is a sum of terms that are each at least 0, one for every way a client could still move
# to advantage at the prices ``x`` (for probability above u) and ``y = x + 2 F`` (below u); nothing
# cancels. Any x gives a valid bound. The argument needs Q convex and at least 0, nothing more, so
# it covers linear costs, floors and caps, where F itself need not be convex.


#: Arrays longer than this are walked in pieces that stay in the processor's cache.
_PIECE = 1 << 15

#: Larger costs count as infinite, so that no sum can overflow.
LARGEST_COST = 1e280

_EPSILON = float(np.finfo(np.float64).eps)

#: Allowed for the rounding of F and of u.
_ROUNDING = 8.0 * _EPSILON


class Costs(NamedTuple):
    """One checked instance of Problem 1; ``None`` stands for zeros (linear, floor) or ones (cap).

    A client whose cost counts as infinite can only have probability 0.
    """

    unbiased: FloatArray
    noise: FloatArray
    linear: FloatArray | None = None
    floor: FloatArray | None = None
    cap: FloatArray | None = None
    clipping_gap: float = 0.0

    def piece(self, part: slice) -> Costs:
        """The same instance for a contiguous part of the clients, infinite costs as caps at 0."""
        noise = self.noise[part]
        linear = None if self.linear is None else self.linear[part]
        floor = None if self.floor is None else self.floor[part]
        cap = None if self.cap is None else self.cap[part]
        if max(float(noise.max()), 0.0 if linear is None else float(linear.max())) > LARGEST_COST:
            shut = noise > LARGEST_COST
            if linear is not None:
                shut |= linear > LARGEST_COST
                linear = np.where(shut, 0.0, linear)
            noise = np.where(shut, 0.0, noise)
            cap = np.where(shut, 0.0, 1.0 if cap is None else cap)
        return Costs(self.unbiased[part], noise, linear, floor, cap, self.clipping_gap)


class Certificate(NamedTuple):
    """What is proved about a selection: ``lower_bound <= optimum <= objective``."""

    objective: float
    lower_bound: float
    gap: float


def objective_of(probabilities: FloatArray, costs: Costs) -> float:
    """The objective of Problem 1, G + sqrt(G^2 + Q), at the given probabilities.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([0.0, 4.0]))
        >>> objective_of(np.array([0.5, 0.5]), costs)
        1.0
    """
    return _totals(probabilities, costs)[0]


def certify(probabilities: FloatArray, costs: Costs) -> Certificate:
    """Objective, lower bound on the optimum and their difference, from the probabilities alone.

    The gap includes an allowance of some machine precisions for rounding, so that the lower bound
    holds for the real numbers and not only for their floating-point images.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([0.0, 400.0]))
        >>> certify(np.array([0.99, 0.01]), costs).gap < 0.01
        True
    """
    objective, mass, cheapest = _totals(probabilities, costs)
    if objective == 0.0 or not math.isfinite(objective):
        return Certificate(objective, objective, 0.0)
    # What the rounding of the sum of p may hide, for every unit of a price.
    imbalance = abs(mass - 1.0) + _EPSILON

    def loss_at(price: float) -> float:
        shortfall = _shortfall(probabilities, costs, price, objective)
        return shortfall + 2.0 * abs(price + objective) * imbalance

    loss = loss_at(cheapest)
    if loss > 1e-12 * objective * objective:
        # With bounds, or far from the optimum, another price may prove more.
        prices = _supporting_prices(probabilities, costs, objective)
        loss = min(loss, *(loss_at(price) for price in prices))
    gap = loss / objective + _ROUNDING * (1.0 + objective)
    lower_bound = max(objective - gap, 0.0)
    return Certificate(objective, lower_bound, objective - lower_bound)


def pieces(size: int) -> Iterator[slice]:
    """Contiguous parts of an array that stay in the processor's cache, in order.

    Example:
        >>> list(pieces(40_000))
        [slice(0, 32768, None), slice(32768, 65536, None)]
    """
    for start in range(0, size, _PIECE):
        yield slice(start, start + _PIECE)


def _marginal(p: FloatArray, local: Costs) -> FloatArray:
    """Half the derivative of Q: a p + b / 2."""
    marginal = local.noise * p
    if local.linear is not None:
        marginal += 0.5 * local.linear
    return marginal


def _totals(probabilities: FloatArray, costs: Costs) -> tuple[float, float, float]:
    """F, the sum of p, and the smallest marginal cost of a client that can still be raised."""
    bias, noise, mass, cheapest, dearest = costs.clipping_gap, 0.0, 0.0, math.inf, 0.0
    for part in pieces(probabilities.size):
        p, local = probabilities[part], costs.piece(part)
        marginal = _marginal(p, local)
        bias += float(np.abs(p - local.unbiased).sum())
        work = marginal if local.linear is None else marginal + 0.5 * local.linear
        noise += float((work * p).sum())
        if local.cap is not None and bool((p[local.cap == 0.0] > 0.0).any()):
            noise = math.inf
        mass += float(p.sum())
        top = np.maximum(p, local.unbiased)
        can_rise = top < (1.0 if local.cap is None else local.cap)
        if can_rise.all():
            cheapest = min(cheapest, float(marginal.min()))
        elif can_rise.any():
            cheapest = min(cheapest, float(marginal[can_rise].min()))
        dearest = max(dearest, float(marginal.max()))
    objective = bias + math.hypot(bias, math.sqrt(noise))
    return objective, mass, cheapest if math.isfinite(cheapest) else dearest


def _supporting_prices(
    probabilities: FloatArray, costs: Costs, objective: float
) -> tuple[float, ...]:
    """Prices x at which nobody would rather be raised, or nobody lowered; one price if both."""
    least, most = -math.inf, math.inf
    for part in pieces(probabilities.size):
        p, local = probabilities[part], costs.piece(part)
        marginal = _marginal(p, local)
        # Where p equals u up to rounding, raising is paid at x and lowering at y.
        distance = p - local.unbiased
        near = 4.0 * _EPSILON * local.unbiased
        can_rise = p < (1.0 if local.cap is None else local.cap)
        can_fall = p > (0.0 if local.floor is None else local.floor)
        rising = (marginal - 2.0 * objective * (distance < -near))[can_rise]
        falling = (marginal - 2.0 * objective * (distance <= near))[can_fall]
        most = min(most, float(rising.min(initial=math.inf)))
        least = max(least, float(falling.max(initial=-math.inf)))
    if least <= most:
        return (min(max(0.0, least), most),)
    return (most, least)


def _shortfall(probabilities: FloatArray, costs: Costs, price: float, objective: float) -> float:
    """Delta: what all clients together could still gain at the prices x and x + 2 F."""
    total = 0.0
    for part in pieces(probabilities.size):
        p, local = probabilities[part], costs.piece(part)
        u = local.unbiased
        above = _marginal(p, local) - price
        below = above - 2.0 * objective
        # Downwards: give up what is above u, then what is below it.
        start = u if local.floor is None else np.maximum(u, local.floor)
        total += float((np.maximum(above, 0.0) * np.maximum(p - start, 0.0)).sum())
        room = np.minimum(p, u)
        if local.floor is not None:
            room = np.maximum(room - local.floor, 0.0)
        total += float((np.maximum(below, 0.0) * room).sum())
        # Upwards: back to u, then beyond it.
        end = u if local.cap is None else np.minimum(u, local.cap)
        total += float((np.maximum(-below, 0.0) * np.maximum(end - p, 0.0)).sum())
        wanting = above < 0.0
        if wanting.any():
            ceiling = 1.0 if local.cap is None else local.cap
            room = np.maximum(ceiling - np.maximum(p, u), 0.0)
            total -= float((above * room)[wanting].sum())
    return 2.0 * total

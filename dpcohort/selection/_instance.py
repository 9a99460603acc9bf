# SPDX-License-Identifier: Apache-2.0
"""An instance of Problem 1: its checked input, its objective, its certificate, and water filling.

The certificate says how far any choice is from the best; water filling finds the best choice with
linear costs, floors and caps.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array, number
from dpcohort.errors import InputError

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


def checked_instance(
    unbiased: ArrayLike,
    noise_costs: ArrayLike,
    linear_costs: ArrayLike | None,
    floor: ArrayLike | None = None,
    cap: ArrayLike | None = None,
    clipping_gap: float = 0.0,
) -> Costs:
    """The instance as it was given, its values checked; linear costs that are all 0 are left out.

    Example:
        >>> checked_instance([0.5, 0.5], [0, 4], [0, 0], cap=0.75).cap
        array([0.75, 0.75])
    """
    u = checked_unbiased(unbiased)
    noise = checked_costs("noise_costs", noise_costs, u.size)
    gap = number("clipping_gap", clipping_gap, at_least=0, below=LARGEST_COST)
    linear = None if linear_costs is None else checked_costs("linear_costs", linear_costs, u.size)
    if linear is not None and not linear.any():
        linear = None
    return Costs(
        u, noise, linear, checked_bound("floor", floor, u), checked_bound("cap", cap, u), gap
    )


def bounded_costs(costs: Costs) -> tuple[Costs, bool]:
    """The instance with infinite costs turned into caps, and whether a floor forces one of them."""
    u, a, b, floor, cap, gap = costs
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
    for field, bound, sign, word, change in (
        ("floor", floor, 1.0, "most", "lower"),
        ("cap", cap, -1.0, "least", "raise"),
    ):
        if bound is not None and sign * float(bound.sum()) > sign + 1e-12:
            raise InputError(
                field,
                given=float(bound.sum()),
                allowed=f"at {word} 1 when summed over the {size} clients",
                next_step=f"No probabilities can meet it; {change} the {field}.",
            )
    if floor is not None and cap is not None and bool((floor > cap).any()):
        k = int(np.flatnonzero(floor > cap)[0])
        raise InputError(
            f"floor[{k}]", given=float(floor[k]), allowed=f"at most cap[{k}] = {float(cap[k]):g}"
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


def scaled_instance(factor: float, costs: Costs) -> Costs:
    """The instance with its noise counted so many times; linear costs of 0 are left out.

    Example:
        >>> scaled_instance(2.0, Costs(np.array([0.5, 0.5]), np.array([0.0, 4.0]))).noise
        array([0., 8.])
    """
    linear = None if costs.linear is None else scaled_costs(factor, costs.linear)
    if linear is not None and not linear.any():
        linear = None
    return costs._replace(noise=scaled_costs(factor, costs.noise), linear=linear)


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


def _piece_of(costs: Costs, part: slice) -> Costs:
    """The same instance for a contiguous part of the clients, infinite costs as caps at 0."""
    unbiased, noise = costs.unbiased[part], costs.noise[part]
    linear, floor, cap = (None if column is None else column[part] for column in costs[2:5])
    if max(float(noise.max()), 0.0 if linear is None else float(linear.max())) > LARGEST_COST:
        shut = noise > LARGEST_COST
        if linear is not None:
            shut |= linear > LARGEST_COST
            linear = np.where(shut, 0.0, linear)
        noise = np.where(shut, 0.0, noise)
        cap = np.where(shut, 0.0, 1.0 if cap is None else cap)
    return Costs(unbiased, noise, linear, floor, cap, costs.clipping_gap)


def objective_of(probabilities: FloatArray, costs: Costs) -> float:
    """The objective of Problem 1, G + sqrt(G^2 + Q), at the given probabilities.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([0.0, 4.0]))
        >>> objective_of(np.array([0.5, 0.5]), costs)
        1.0
    """
    return _totals(probabilities, costs)[0]


def certify(probabilities: FloatArray, costs: Costs) -> tuple[float, float, float]:
    """Objective, lower bound on the optimum and their difference, from the probabilities alone.

    The gap includes an allowance of some machine precisions for rounding, so that the lower bound
    holds for the real numbers and not only for their floating-point images.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([0.0, 400.0]))
        >>> certify(np.array([0.99, 0.01]), costs)[2] < 0.01
        True
    """
    objective, mass, cheapest = _totals(probabilities, costs)
    if objective == 0.0 or not math.isfinite(objective):
        return objective, objective, 0.0
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
    return objective, lower_bound, objective - lower_bound


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
        p, local = probabilities[part], _piece_of(costs, part)
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
        p, local = probabilities[part], _piece_of(costs, part)
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
        p, local = probabilities[part], _piece_of(costs, part)
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


# Problem 1 with linear costs, floors and caps: two monotone loops around water filling.
#
# For f > 0, ``F(p) <= f`` if and only if ``Q + 2 f G <= f^2`` (see above), so
#
# * inside, f is given and ``Q + 2 f G`` is minimised: each client's probability is a function of
#   one price x, ``clip((x - b/2) / a)`` above u and ``clip((x + 2 f - b/2) / a)`` below it, and the
#   sum of probabilities is piecewise linear and rising in x: a Newton step on the current piece,
#   kept inside a bracket that bisection over the floating-point numbers closes, finds where it is
#   1;
# * outside, f becomes F(p). From any start the first step lands at or above F*, every later one
#   falls, and the convergence is faster than linear because ``H(f) = min Q + 2 f G`` is concave.
#
# Both loops end by themselves; each pass is linear in the number of clients. Where the sum jumps (a
# client whose marginal cost is constant) the answers on both sides of the jump are mixed.


#: Stands in for a noise cost of 0 in divisions; the quotient is clipped to the bounds at once.
_ALMOST_ZERO = 1e-300

#: Above this many clients the loops start from the answer for an evenly spaced sample.
_SAMPLE_ABOVE = 1 << 16
_SAMPLE_SIZE = 1 << 13


#: Probabilities with the prices that support them: x above u and y below it.
Filled = tuple[FloatArray, float, float]


class _Prices:
    """The best probabilities of all clients as a function of the price x, for a given width 2 f."""

    def __init__(self, costs: Costs, floor: FloatArray, cap: FloatArray, width: float) -> None:
        self.unbiased, self.floor, self.cap, self.width = costs.unbiased, floor, cap, width
        self.noise = np.maximum(costs.noise, _ALMOST_ZERO)
        self.offset = np.zeros_like(floor) if costs.linear is None else 0.5 * costs.linear
        closed = cap == floor
        if closed.any():
            # Their place is fixed; an infinite cost must not reach the arithmetic below.
            self.noise = np.where(closed, 1.0, self.noise)
            self.offset = np.where(closed, 0.0, self.offset)

    def at(self, price: float, part: slice = slice(None)) -> FloatArray:
        """Probabilities at price x."""
        noise, offset = self.noise[part], self.offset[part]
        with np.errstate(over="ignore"):
            best = (price - offset) / noise
            if self.width > 0.0:
                np.maximum(best, self.unbiased[part], out=best)
                np.minimum(best, (price + self.width - offset) / noise, out=best)
        np.maximum(best, self.floor[part], out=best)
        np.minimum(best, self.cap[part], out=best)
        return best

    def total(self, price: float) -> tuple[float, float]:
        """Sum of the probabilities at price x, and its slope there."""
        total = slope = 0.0
        for part in pieces(self.floor.size):
            best = self.at(price, part)
            total += float(best.sum())
            moving = (best > self.floor[part]) & (best < self.cap[part])
            if self.width > 0.0:
                moving &= best != self.unbiased[part]
            with np.errstate(over="ignore"):
                slope += float((moving / self.noise[part]).sum())
        return total, slope

    def bracket(self) -> tuple[float, float]:
        """Prices at which everybody is at the floor, and at the cap."""
        bottom = float((self.noise * self.floor + self.offset).min()) - self.width
        top = float((self.noise * self.cap + self.offset).max())
        margin = 1e-12
        return bottom - margin * (1.0 + abs(bottom)), top + margin * (1.0 + abs(top))


def fill(
    costs: Costs,
    floor: FloatArray,
    cap: FloatArray,
    *,
    half_width: float,
    target: float = 1.0,
    guess: float | None = None,
) -> Filled:
    """Minimises ``Q + 2 f ||p - u||_1`` over ``floor <= p <= cap`` with ``sum p = target``.

    Args:
        costs: noise and linear costs and u; its own floor and cap are not looked at.
        floor: lower ends; they sum to at most ``target``.
        cap: upper ends; they sum to at least ``target``.
        half_width: f; at 0 the unbiased probabilities play no part.
        target: sum of the probabilities.
        guess: a price to start from.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([1.0, 3.0]))
        >>> fill(costs, np.zeros(2), np.ones(2), half_width=0.0)[0]
        array([0.75, 0.25])
    """
    prices = _Prices(costs, floor, cap, 2.0 * half_width)
    low, high = prices.bracket()
    price = guess if guess is not None and low < guess < high else 0.5 * (low + high)
    low_total, high_total = -math.inf, math.inf
    for step in range(200):
        total, slope = prices.total(price)
        if total < target:
            low, low_total = price, total
        else:
            high, high_total = price, total
        fine = 2.0**-54 * (half_width if half_width > 0.0 else abs(price))
        if total == target or high - low <= fine or _ordinal(high) - _ordinal(low) <= 1:
            break
        newton = price + (target - total) / slope if slope > 0.0 else math.nan
        # Every fourth step bisects, so that a bad run of Newton steps cannot last.
        price = newton if step % 4 != 3 and low < newton < high else _halfway(low, high)
    if high_total == target:
        low, low_total = high, high_total
    probabilities = _mixed(prices, low, high, low_total, high_total, target)
    probabilities = _share_alike(probabilities, costs, floor, cap, (low, high), 2.0 * half_width)
    middle = 0.5 * (low + high)
    return probabilities, middle, middle + 2.0 * half_width


def solve_by_filling(costs: Costs) -> Filled:
    """The exact optimum of Problem 1 with linear costs, floors and caps.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([0.0, 400.0]), cap=np.array([0.7, 1.0]))
        >>> solve_by_filling(costs)[0]
        array([0.7, 0.3])
    """
    unmoved = _unmoved(costs)
    if unmoved is not None:
        return unmoved
    floor, cap = bounds_of(costs)
    width, price = _start(costs, floor, cap)
    for _ in range(100):
        answer = fill(costs, floor, cap, half_width=width, guess=price)
        value = objective_of(answer[0], costs)
        # F is flat around its minimum: only where f = F(p) to the last bits is p exact as well.
        if abs(value - width) <= 2.0**-51 * width or value == 0.0:
            break
        # The prices move with the width; keep y - x centred where it was.
        width, price = value, answer[1] + width - value
    return answer


def fill_to_gap(costs: Costs, gap: float) -> Filled | None:
    """Minimises Q with ``||p - u||_1 <= gap``; None where no probabilities are that close to u.

    Raising and lowering separate: the mass that has to move is known on either side, and each side
    is a water filling of its own.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([0.0, 400.0]))
        >>> fill_to_gap(costs, 0.2)[0]
        array([0.6, 0.4])
    """
    floor, cap = bounds_of(costs)
    freely = fill(costs, floor, cap, half_width=0.0)
    if float(np.abs(freely[0] - costs.unbiased).sum()) <= gap:
        return freely
    nearest = np.clip(costs.unbiased, floor, cap)
    mass = float(nearest.sum())
    spare = gap - float(np.abs(nearest - costs.unbiased).sum())
    missing = 1.0 - mass
    if abs(missing) < 1e-12 and floor.max() == 0.0:
        missing = 0.0  # only the rounding of u
    add, take = 0.5 * (spare + missing), 0.5 * (spare - missing)
    if min(add, take) < -1e-13:
        return None
    up, lower, _ = fill(costs, nearest, cap, half_width=0.0, target=mass + max(add, 0.0))
    down, upper, _ = fill(costs, floor, nearest, half_width=0.0, target=mass - max(take, 0.0))
    # Nobody is both raised and lowered; choosing, not adding, keeps tiny probabilities exact.
    return np.where(up > nearest, up, down), lower, upper


def bounds_of(costs: Costs) -> tuple[FloatArray, FloatArray]:
    """Floor and cap of everybody."""
    size = costs.unbiased.size
    floor = np.zeros(size) if costs.floor is None else costs.floor
    cap = np.ones(size) if costs.cap is None else np.minimum(costs.cap, 1.0)
    return floor, cap


def marginal_ends(costs: Costs) -> tuple[float, float] | None:
    """At p = u the largest marginal cost of who can be lowered, the smallest of who can be raised.

    None if p = u is not allowed.

    Example:
        >>> marginal_ends(Costs(np.array([0.5, 0.5]), np.array([1.0, 4.0])))
        (2.0, 0.5)
    """
    u, (floor, cap) = costs.unbiased, bounds_of(costs)
    if bool(((u < floor) | (u > cap)).any()):
        return None
    marginal = _marginal(u, costs)
    top = float(marginal[u > floor].max(initial=-math.inf))
    return top, float(marginal[u < cap].min(initial=math.inf))


def _unmoved(costs: Costs) -> Filled | None:
    """The unbiased probabilities, if they are allowed and nobody would gain by moving."""
    u, ends = costs.unbiased, marginal_ends(costs)
    if ends is None:
        return None
    top, bottom = ends
    width = 2.0 * objective_of(u, costs)
    if top - bottom > width:
        return None
    middle = 0.5 * (top + bottom) if math.isfinite(top - bottom) else 0.0
    return u.copy(), middle - 0.5 * width, middle + 0.5 * width


def _start(costs: Costs, floor: FloatArray, cap: FloatArray) -> tuple[float, float | None]:
    """A width f and a price to begin with; any will do, good ones save passes."""
    if costs.unbiased.size > _SAMPLE_ABOVE:
        every = slice(None, None, costs.unbiased.size // _SAMPLE_SIZE)
        sample = _piece_of(costs, every)
        factor = costs.unbiased.size / sample.unbiased.size
        low, high = floor[every] * factor, np.minimum(cap[every] * factor, 1.0)
        if low.sum() < 1.0 < high.sum() and bool((low <= high).all()):
            # Marginal costs a u and prices mean the same in the sample as in the whole.
            u, noise = sample.unbiased * factor, sample.noise / factor
            scaled = Costs(u, noise, sample.linear, low, high, costs.clipping_gap)
            _, lower, upper = solve_by_filling(scaled)
            return 0.5 * (upper - lower), lower
    spread = cap - floor
    room = float(spread.sum())
    share = (1.0 - float(floor.sum())) / room if room > 0.0 else 0.0
    return objective_of(floor + share * spread, costs), None


def _mixed(
    prices: _Prices, low: float, high: float, low_total: float, high_total: float, target: float
) -> FloatArray:
    """Probabilities that sum to the target, between those at the two ends of the bracket."""
    upper = prices.at(high)
    if high_total == target:
        return upper
    if not math.isfinite(high_total):
        high_total = float(upper.sum())
    lower = prices.at(low)
    if not math.isfinite(low_total):
        low_total = float(lower.sum())
    if high_total <= low_total:
        return upper
    weight = min(max((target - low_total) / (high_total - low_total), 0.0), 1.0)
    return lower + weight * (upper - lower)


def _share_alike(
    probabilities: FloatArray,
    costs: Costs,
    floor: FloatArray,
    cap: FloatArray,
    bracket: tuple[float, float],
    width: float,
) -> FloatArray:
    """Shares the mass of clients with one constant marginal cost in proportion to u.

    How it is shared among them does not change the objective, as long as none crosses u.
    """
    flat = (costs.noise == 0.0) & (cap > floor)
    if not flat.any():
        return probabilities
    offset = np.zeros_like(probabilities) if costs.linear is None else 0.5 * costs.linear
    for price, raised in ((bracket, True), ((bracket[0] + width, bracket[1] + width), False)):
        # With the stand-in for a cost of 0, a flat client's price is a hair above its offset.
        alike = flat & (offset + _ALMOST_ZERO >= price[0]) & (offset <= price[1])
        if np.count_nonzero(alike) < 2:
            continue
        weights = costs.unbiased[alike]
        bottom, top = floor[alike], cap[alike]
        if width > 0.0:
            if raised:
                bottom = np.minimum(np.maximum(bottom, weights), top)
            else:
                top = np.maximum(np.minimum(top, weights), bottom)
        mass = float(probabilities[alike].sum())
        if not weights.any():
            weights = np.ones_like(weights)
        probabilities[alike] = _in_proportion(mass, weights, bottom, top)
        if width == 0.0:
            break
    return probabilities


def _in_proportion(
    mass: float, weights: FloatArray, bottom: FloatArray, top: FloatArray
) -> FloatArray:
    """Shares ``mass`` as ``clip(c w, bottom, top)``; what weightless clients must take is equal."""
    mass = min(max(mass, float(bottom.sum())), float(top.sum()))
    reach = float(np.where(weights > 0.0, top, bottom).sum())
    if mass > reach:
        room = np.where(weights > 0.0, 0.0, top - bottom)
        total = float(room.sum())
        even = room * ((mass - reach) / total) if total > 0.0 else room
        return np.where(weights > 0.0, top, bottom + even)
    with np.errstate(divide="ignore"):
        stiffness = np.where(weights > 0.0, 1.0 / weights, 1e280)
    costs = Costs(weights, stiffness)
    shares, _, _ = fill(costs, bottom, top, half_width=0.0, target=mass)
    return np.where(weights > 0.0, shares, bottom)


def _ordinal(value: float) -> int:
    """The place of a double among all doubles."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits) if bits >= 0 else -(int(bits) & 0x7FFFFFFFFFFFFFFF)


def _halfway(low: float, high: float) -> float:
    """The double halfway between two doubles in their order: 64 halvings reach any of them."""
    middle = (_ordinal(low) + _ordinal(high)) // 2
    magnitude = struct.unpack("<d", struct.pack("<q", abs(middle)))[0]
    return float(magnitude) if middle >= 0 else -float(magnitude)

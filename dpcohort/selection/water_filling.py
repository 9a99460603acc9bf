# SPDX-License-Identifier: Apache-2.0
"""Problem 1 with linear costs, floors and caps: two monotone loops around water filling.

For f > 0, ``F(p) <= f`` if and only if ``Q + 2 f G <= f^2`` (see :mod:`.instance`), so

* inside, f is given and ``Q + 2 f G`` is minimised: each client's probability is a function of one
  price x, ``clip((x - b/2) / a)`` above u and ``clip((x + 2 f - b/2) / a)`` below it, and the sum
  of probabilities is piecewise linear and rising in x: a Newton step on the current piece, kept
  inside a bracket that bisection over the floating-point numbers closes, finds where it is 1;
* outside, f becomes F(p). From any start the first step lands at or above F*, every later one
  falls, and the convergence is faster than linear because ``H(f) = min Q + 2 f G`` is concave.

Both loops end by themselves; each pass is linear in the number of clients. Where the sum jumps (a
client whose marginal cost is constant) the answers on both sides of the jump are mixed.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.selection.instance import Costs, objective_of, pieces

__all__ = ["Filled", "fill", "fill_to_gap", "solve_by_filling"]

#: Stands in for a noise cost of 0 in divisions; the quotient is clipped to the bounds at once.
_ALMOST_ZERO = 1e-300

#: Above this many clients the loops start from the answer for an evenly spaced sample.
_SAMPLE_ABOVE = 1 << 16
_SAMPLE_SIZE = 1 << 13


class Filled(NamedTuple):
    """Probabilities with the prices that support them: x above u and y below it."""

    probabilities: FloatArray
    lower: float
    upper: float


class _Prices:
    """The best probabilities of all clients as a function of the price x, for a given width 2 f."""

    def __init__(self, costs: Costs, floor: FloatArray, cap: FloatArray, width: float) -> None:
        self.unbiased, self.floor, self.cap, self.width = costs.unbiased, floor, cap, width
        self.noise = np.maximum(costs.noise, _ALMOST_ZERO)
        self.offset = None if costs.linear is None else 0.5 * costs.linear
        closed = cap == floor
        if closed.any():
            # Their place is fixed; an infinite cost must not reach the arithmetic below.
            self.noise = np.where(closed, 1.0, self.noise)
            self.offset = None if self.offset is None else np.where(closed, 0.0, self.offset)

    def at(self, price: float, part: slice = slice(None)) -> FloatArray:
        """Probabilities at price x."""
        noise = self.noise[part]
        offset = 0.0 if self.offset is None else self.offset[part]
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
        offset = 0.0 if self.offset is None else self.offset
        bottom = float((self.noise * self.floor + offset).min()) - self.width
        top = float((self.noise * self.cap + offset).max())
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
        >>> fill(costs, np.zeros(2), np.ones(2), half_width=0.0).probabilities
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
    return Filled(probabilities, middle, middle + 2.0 * half_width)


def solve_by_filling(costs: Costs) -> Filled:
    """The exact optimum of Problem 1 with linear costs, floors and caps.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([0.0, 400.0]), cap=np.array([0.7, 1.0]))
        >>> solve_by_filling(costs).probabilities
        array([0.7, 0.3])
    """
    floor, cap = _bounds(costs)
    unmoved = _unmoved(costs, floor, cap)
    if unmoved is not None:
        return unmoved
    width, price = _start(costs, floor, cap)
    for _ in range(100):
        answer = fill(costs, floor, cap, half_width=width, guess=price)
        value = objective_of(answer.probabilities, costs)
        # F is flat around its minimum: only where f = F(p) to the last bits is p exact as well.
        if abs(value - width) <= 2.0**-51 * width or value == 0.0:
            break
        # The prices move with the width; keep y - x centred where it was.
        width, price = value, answer.lower + width - value
    return answer


def fill_to_gap(costs: Costs, gap: float) -> Filled | None:
    """Minimises Q with ``||p - u||_1 <= gap``; None where no probabilities are that close to u.

    Raising and lowering separate: the mass that has to move is known on either side, and each side
    is a water filling of its own.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([0.0, 400.0]))
        >>> fill_to_gap(costs, 0.2).probabilities
        array([0.6, 0.4])
    """
    floor, cap = _bounds(costs)
    freely = fill(costs, floor, cap, half_width=0.0)
    if float(np.abs(freely.probabilities - costs.unbiased).sum()) <= gap:
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
    up = fill(costs, nearest, cap, half_width=0.0, target=mass + max(add, 0.0))
    down = fill(costs, floor, nearest, half_width=0.0, target=mass - max(take, 0.0))
    # Nobody is both raised and lowered; choosing, not adding, keeps tiny probabilities exact.
    p = np.where(up.probabilities > nearest, up.probabilities, down.probabilities)
    return Filled(p, up.lower, down.lower)


def _bounds(costs: Costs) -> tuple[FloatArray, FloatArray]:
    size = costs.unbiased.size
    floor = np.zeros(size) if costs.floor is None else costs.floor
    cap = np.ones(size) if costs.cap is None else np.minimum(costs.cap, 1.0)
    return floor, cap


def _unmoved(costs: Costs, floor: FloatArray, cap: FloatArray) -> Filled | None:
    """The unbiased probabilities, if they are allowed and nobody would gain by moving."""
    u = costs.unbiased
    if bool(((u < floor) | (u > cap)).any()):
        return None
    marginal = costs.noise * u + (0.0 if costs.linear is None else 0.5 * costs.linear)
    top = float(marginal[u > floor].max(initial=-math.inf))
    bottom = float(marginal[u < cap].min(initial=math.inf))
    width = 2.0 * objective_of(u, costs)
    if top - bottom > width:
        return None
    middle = 0.5 * (top + bottom) if math.isfinite(top - bottom) else 0.0
    return Filled(u.copy(), middle - 0.5 * width, middle + 0.5 * width)


def _start(costs: Costs, floor: FloatArray, cap: FloatArray) -> tuple[float, float | None]:
    """A width f and a price to begin with; any will do, good ones save passes."""
    if costs.unbiased.size > _SAMPLE_ABOVE:
        every = slice(None, None, costs.unbiased.size // _SAMPLE_SIZE)
        sample = costs.piece(every)
        factor = costs.unbiased.size / sample.unbiased.size
        # Marginal costs a u and prices mean the same in the sample as in the whole.
        scaled = Costs(
            sample.unbiased * factor,
            sample.noise / factor,
            sample.linear,
            floor[every] * factor,
            np.minimum(cap[every] * factor, 1.0),
            costs.clipping_gap,
        )
        if scaled.floor is not None and scaled.cap is not None:
            feasible = scaled.floor.sum() < 1.0 < scaled.cap.sum()
            if feasible and bool((scaled.floor <= scaled.cap).all()):
                answer = solve_by_filling(scaled)
                return 0.5 * (answer.upper - answer.lower), answer.lower
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
        return np.where(weights > 0.0, top, bottom + _even(mass - reach, weights, top - bottom))
    with np.errstate(divide="ignore"):
        stiffness = np.where(weights > 0.0, 1.0 / weights, 1e280)
    costs = Costs(weights, stiffness)
    shares = fill(costs, bottom, top, half_width=0.0, target=mass).probabilities
    return np.where(weights > 0.0, shares, bottom)


def _even(mass: float, weights: FloatArray, room: FloatArray) -> FloatArray:
    room = np.where(weights > 0.0, 0.0, room)
    total = float(room.sum())
    return room * (mass / total) if total > 0.0 else room


def _ordinal(value: float) -> int:
    """The place of a double among all doubles."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits) if bits >= 0 else -(int(bits) & 0x7FFFFFFFFFFFFFFF)


def _halfway(low: float, high: float) -> float:
    """The double halfway between two doubles in their order: 64 halvings reach any of them."""
    middle = (_ordinal(low) + _ordinal(high)) // 2
    magnitude = struct.unpack("<d", struct.pack("<q", abs(middle)))[0]
    return float(magnitude) if middle >= 0 else -float(magnitude)

# SPDX-License-Identifier: Apache-2.0
"""How to sort the losses of many steps at tiny rates by size, from a rough sketch of them.

Which spacing the largest losses need follows from how steeply δ falls with ε there; how many levels
of smaller losses there are, from how much variance rounding would add to their sum. Nothing here
enters a bound: a poor choice makes a certificate looser, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.accounting.grids import SMALLEST_TAIL
from dpcohort.accounting.pairs import LossPair

__all__ = [
    "FAR",
    "LARGEST_EXPONENT",
    "MOST_POINTS",
    "ORDERS",
    "LevelSketch",
    "first_epsilon",
    "loss_nodes",
]

#: A loss this far above ε counts as infinite, for e^-10 of its δ.
FAR = 10.0
#: Points of the top level, at most.
MOST_POINTS = 2**16
#: How many orders of moments are tried.
ORDERS = 40
#: Moments with larger exponents are not looked at.
LARGEST_EXPONENT = 300.0

_NEGLIGIBLE = 1e-5  # what a cut tail may add to δ, relatively
# The scale on which δ falls by e is the unit of the top spacing, and its square that of the
# variance which rounding may add to the sum. A variance v raises ln δ by v/2 in these units.
_TOP_SPACING = 0.25
_VARIANCE = 0.03
_LOWER_TILT = 0.5  # of a lower level, times the spread of its sum
_LARGEST_RATIO = 16  # between the spacings of two levels
_MOST_LEVELS = 8
_NODES_PER_DEVIATION = 20.0


class LevelSketch:
    """Spacings, levels and tilts for an expected answer (ε, δ).

    Args:
        parts: the distinct steps and how often each is taken.
        epsilon: about where the answer is, above 0.
        log_delta: about what ln δ is there.
        coarseness: factor on the variance that rounding may add; 1 is accurate.

    Attributes:
        epsilon: about where the answer is.
        log_delta: about what δ is there.
        tilts: order of the exponential tilt at each level.
        top: losses above this count as infinite.
        steps: spacing of each level, the smallest first.
        bounds: bounds on |L| between the levels.
        log_tail: of what may be left out of the law of a sum.
        log_room: of what may be in the wrong place in a tilted law.

    Example:
        >>> pair = LossPair(kind="remove", shift=2.0, rate=1e-5)
        >>> sketch = LevelSketch(
        ...     [(pair, 50_000)], epsilon=0.2, log_delta=math.log(1e-5), coarseness=1.0
        ... )
        >>> len(sketch.steps), len(sketch.bounds), sketch.steps[0] < sketch.steps[-1]
        (3, 2, True)
    """

    def __init__(
        self,
        parts: Sequence[tuple[LossPair, int]],
        *,
        epsilon: float,
        log_delta: float,
        coarseness: float,
    ) -> None:
        loss, weight = loss_nodes(parts, math.exp(log_delta))
        drift = sum(-count * math.log1p(-pair.rate) for pair, count in parts)
        top = epsilon + FAR + drift
        self._loss = np.maximum(loss[loss <= top], -(epsilon + FAR))
        self._weight = weight[loss <= top]
        self._size = np.abs(self._loss)
        self.epsilon = epsilon
        self.log_delta = min(log_delta, 0.0)
        self.top = min(top, 1.1 * float(self._loss.max()) + 1e-9)
        self._orders = np.geomspace(0.01 / (1 + float(self._size.max())), 1e4 / epsilon, ORDERS)

        alone = float(self._weight @ -np.expm1(np.minimum(epsilon - self._loss, 0.0)))
        # How steeply δ falls: as that of a loss that comes alone, or as that of a sum of many.
        many = self._log_moment(self._size <= epsilon) - self._orders * epsilon
        saddle = self._best_order(many)
        above = float(self._weight[self._loss > epsilon].sum())
        steepness = min(saddle, above / alone - 1 if alone > 0 else math.inf)
        unit = 1 / (1 + steepness)
        top_step = max(_TOP_SPACING * unit, self.top / MOST_POINTS)
        self.steps, self.bounds = self._levels(top_step, coarseness * _VARIANCE * unit**2)

        # The tilt is best for the sums with an event of the top level; those without one count
        # only if they can reach ε at all.
        small = self._size <= (self.bounds[-1] if self.bounds else top_step / 2)
        none, events = self._log_moment(small), self._log_moment(~small)
        some = none + np.where(
            events < 1, np.log(np.maximum(np.expm1(np.minimum(events, 1.0)), 1e-300)), events
        )
        without = float(np.min(none - self._orders * epsilon))
        if without > self.log_delta + math.log(_NEGLIGIBLE):
            some = np.logaddexp(some, none)
        exponent = some - self._orders * epsilon
        tilt = self._best_order(exponent)
        reached = float(exponent[self._orders == tilt][0])
        self.tilts = [*(max(tilt, self._lower_tilt(bound)) for bound in self.bounds), tilt]
        self.log_tail = self.log_delta + math.log(_NEGLIGIBLE)
        self.log_room = min(self.log_delta - reached, 0.0) + math.log(_NEGLIGIBLE)

    def _best_order(self, exponent: FloatArray) -> float:
        """The order with the smallest bound, or the first with one that is small enough."""
        enough = np.flatnonzero(exponent < self.log_delta - FAR)
        return float(self._orders[enough[0] if enough.size else np.argmin(exponent)])

    def _lower_tilt(self, bound: float) -> float:
        """Of a level below the top one.

        Its rounding errors are the same all over its range; a tilt that hardly distorts its law
        makes them fall off towards the large sums.
        """
        spread = math.sqrt(float(self._weight @ np.where(self._size <= bound, self._size, 0) ** 2))
        return _LOWER_TILT / max(spread, bound)

    def _log_moment(self, chosen: BoolArray) -> FloatArray:
        """Logarithm of E e^{tS} at every order t, the losses that are not chosen taken as 0."""
        exponent = np.multiply.outer(self._orders, self._loss[chosen])
        moment = np.expm1(np.minimum(exponent, LARGEST_EXPONENT)) @ self._weight[chosen]
        result: FloatArray = np.where(
            exponent.max(axis=1, initial=0.0) < LARGEST_EXPONENT, moment, np.inf
        )
        return result

    def _levels(self, step: float, variance: float) -> tuple[list[float], list[float]]:
        order = np.argsort(self._size)
        size, weight = self._size[order], self._weight[order]
        steps, bounds = [step], list[float]()
        while len(steps) < _MOST_LEVELS and _gained(size, weight, step) > variance:
            above = np.cumsum(weight[::-1])[::-1] * step**2 / 6
            cut = min(int(np.sum(above > variance / 4)), size.size - 1)
            bound = max(float(size[cut]), step)
            smaller = size <= bound
            size, weight = size[smaller], weight[smaller]
            least = max(10 * math.sqrt(float(weight @ size**2)), bound) / MOST_POINTS
            ratio = 2
            while (
                ratio < _LARGEST_RATIO
                and step > least * (ratio + 1)
                and _gained(size, weight, step / ratio) > variance / 2
            ):
                ratio += 1
            if step < least * ratio:
                break
            step /= ratio
            steps.append(step)
            bounds.append(bound)
        return steps[::-1], bounds[::-1]


def _gained(size: FloatArray, weight: FloatArray, step: float) -> float:
    """Variance that rounding adds to the sum: h²/6 a loss on average, |L| h for a small one."""
    return float(weight @ np.minimum(size * step, step**2 / 6))


def loss_nodes(
    parts: Sequence[tuple[LossPair, int]], delta: float
) -> tuple[FloatArray, FloatArray]:
    """Losses, and the number of steps that have about that loss.

    Example:
        >>> loss, count = loss_nodes([(LossPair(kind="remove", shift=2.0, rate=1e-5), 50)], 1e-5)
        >>> round(float(count.sum()), 6)
        50.0
    """
    total = sum(count for _, count in parts)
    tail = max(_NEGLIGIBLE * delta / total, SMALLEST_TAIL)
    nodes = [
        (*pair.sketch(tail, nodes_per_deviation=_NODES_PER_DEVIATION), count)
        for pair, count in parts
    ]
    return (
        np.concatenate([loss for loss, _, _ in nodes]),
        np.concatenate([count * mass for _, mass, count in nodes]),
    )


def first_epsilon(parts: Sequence[tuple[LossPair, int]], delta: float) -> float:
    """About the ε at which losses that come alone, or the limit of many, give this δ.

    Example:
        >>> parts = [(LossPair(kind="remove", shift=1 / 0.45, rate=1e-5), 1000)]
        >>> 0.03 < first_epsilon(parts, 1e-5) < 0.3
        True
    """
    loss, weight = loss_nodes(parts, delta)
    grid = np.geomspace(1e-4, 60.0, 60)
    alone = -np.expm1(np.minimum(grid[:, None] - loss, 0.0)) @ weight
    reached = np.flatnonzero(alone <= delta)
    rare = float(grid[reached[0]]) if reached.size else 60.0
    small = np.abs(loss) <= rare
    deviation = math.sqrt(float(weight[small] @ loss[small] ** 2))
    return min(max(rare, deviation * math.sqrt(2 * math.log(1 / delta))), 60.0)

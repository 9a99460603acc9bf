# SPDX-License-Identifier: Apache-2.0
"""Which tilt, grid spacing and window suit a composition, from a rough sketch of its losses.

Nothing here enters a bound: a poor choice makes a certificate looser, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.accounting.pairs import LossPair

__all__ = [
    "NEGLIGIBLE",
    "SMALLEST_TAIL",
    "TINY_RATE",
    "Grid",
    "Sketch",
    "Target",
    "Window",
    "log_gap",
]

NEGLIGIBLE = 1e-6  # what a cut tail may add to δ, relatively
SMALLEST_TAIL = 1e-290
#: Below this rate nearly all losses are so small that one grid does not serve them and the others.
TINY_RATE = 5e-4
_MOST_POINTS = 2**20
_LARGEST_TILTED_STEP = 0.25
_LARGEST_WEIGHT_AT_CUT = 1e-3
_ORDERS = 36
_MARGINS = np.array([0.35, 0.7, 1.2, 2.0, 3.0, 4.0, 5.0, 7.0])


@dataclass(frozen=True, kw_only=True)
class Window:
    """The range of the sum that a transform covers.

    Attributes:
        low: lower end.
        high: above this the sum has a probability that is negligible against δ.
        length: at least high - low; more where the tilted sum reaches further.
        high_order: order of the Chernoff bound on what lies above ``high``.

    Example:
        >>> Window(low=-1.0, high=3.0, length=4.5, high_order=2.0).length
        4.5
    """

    low: float
    high: float
    length: float
    high_order: float


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Tilt t, spacing h and window of the sum, chosen for an expected answer (ε, δ).

    Attributes:
        tilt: order t of the exponential tilt.
        log_delta: expected ln δ.
        step: grid spacing h.
        window: range of the sum.
        lowest: for each kind of step, the loss to which all smaller ones may be raised.

    Example:
        >>> sketch = Sketch([(LossPair(kind="remove", shift=0.5, rate=0.2), 10)], math.log(1e-5))
        >>> grid = sketch.grid(sketch.at_delta(math.log(1e-5)), tolerance=1e-4)
        >>> grid.window.low < grid.window.high
        True
    """

    tilt: float
    log_delta: float
    step: float
    window: Window
    lowest: tuple[float, ...]


def log_gap(order: float) -> float:
    """Logarithm of max_u e^{-tu} (1 - e^{-u}) = t^t/(1+t)^{1+t}, the gap between a moment and δ.

    Example:
        >>> round(log_gap(1.0), 4)
        -1.3863
    """
    return -math.log1p(order) - order * math.log1p(1 / order)


class Target(NamedTuple):
    """Where the answer is expected: the saddle t of δ(ε), ε, and ln δ.

    Example:
        >>> Target(tilt=3.0, epsilon=1.0, log_delta=-11.5).epsilon
        1.0
    """

    tilt: float
    epsilon: float
    log_delta: float


class Sketch:
    """Moment functions of the steps by quadrature on a few hundred nodes.

    Args:
        parts: the distinct steps (pair, number of steps).
        log_delta: about the smallest ln δ of interest, to know how far tails matter.

    Example:
        >>> gaussian = LossPair(kind="remove", shift=0.5, rate=1.0)
        >>> sketch = Sketch([(gaussian, 4)], math.log(1e-5))
        >>> bool(np.isclose(sketch.log_moment(np.array([3.0]))[0], 4 * 0.5**2 / 2 * 3.0 * 4.0))
        True
    """

    def __init__(self, parts: Sequence[tuple[LossPair, int]], log_delta: float) -> None:
        total = sum(count for _, count in parts)
        tail = max(NEGLIGIBLE * math.exp(max(log_delta, -600.0)) / total, SMALLEST_TAIL)
        nodes = [(*pair.sketch(tail), count) for pair, count in parts]
        self._nodes = [(loss, np.log(np.maximum(mass, 1e-320)), n) for loss, mass, n in nodes]
        spread = math.sqrt(sum(n * float(mass @ loss**2) for loss, mass, n in nodes))
        low, high = math.log(min(1e-2 / spread, 1e-2)), math.log(max(100 / spread, 100.0))
        orders = np.exp(np.linspace(low, high, _ORDERS))
        scan = self._scan(orders)
        # Orders that put weight on the loss at which the tail was cut are of no use.
        usable = max(2, int(np.argmax(np.append(scan.at_cut, np.inf) > _LARGEST_WEIGHT_AT_CUT)))
        self._orders = orders[:usable]
        self._overview = _Scan(*(column[:usable] for column in scan))

    def log_moment(self, orders: FloatArray) -> FloatArray:
        """Σ n_i ln E[e^{t L_i}] at every order t."""
        result = np.zeros_like(orders)
        for loss, log_mass, count in self._nodes:
            exponent = np.multiply.outer(orders, loss) + log_mass
            peak = exponent.max(axis=1)
            exponent -= peak[:, None]
            result += count * (peak + np.log(np.exp(exponent).sum(axis=1)))
        return result

    def at_epsilon(self, epsilon: float) -> Target:
        """Where to look for δ at this ε."""
        tilt = self._saddle(lambda scan: scan.epsilon - epsilon)
        here = self._scan(np.array([tilt]))
        # Off its own saddle only the Chernoff bound says something about δ.
        on_saddle = abs(here.epsilon[0] - epsilon) * tilt < 1
        chernoff = here.log_moment[0] - epsilon * tilt + log_gap(tilt)
        log_delta = here.log_delta[0] if on_saddle else chernoff - 3.0
        return Target(tilt=tilt, epsilon=epsilon, log_delta=min(float(log_delta), 0.0))

    def at_delta(self, log_delta: float) -> Target:
        """Where to look for ε at this δ."""
        tilt = self._saddle(lambda scan: log_delta - scan.log_delta)
        here = self._scan(np.array([tilt]))
        on_saddle = abs(here.log_delta[0] - log_delta) < 1
        chernoff = (here.log_moment[0] - log_delta + log_gap(tilt)) / tilt
        epsilon = float(here.epsilon[0] if on_saddle else chernoff)
        if epsilon <= 0:
            return self.at_epsilon(0.0)._replace(log_delta=log_delta)
        return Target(tilt=tilt, epsilon=epsilon, log_delta=log_delta)

    def grid(self, target: Target, *, tolerance: float, least: float = 0.25) -> Grid:
        """A grid on which ε is overstated by about ``tolerance``.

        Relatively; an ε below ``least`` standard deviations of the tilted sum is treated as that.
        """
        tilt, epsilon, log_delta = target
        tilted = [_tilted(loss, log_mass, tilt) for loss, log_mass, _ in self._nodes]
        counts = [count for _, _, count in self._nodes]
        deviation = math.sqrt(
            sum(
                n * float(w @ (loss - w @ loss) ** 2)
                for (loss, w), n in zip(tilted, counts, strict=True)
            )
        )
        deviation = max(deviation, 1e-6 / tilt)  # a sketch may miss all but one node
        step = _spacing(
            tilted, counts, allowed=2 * tolerance * max(epsilon, least * deviation) / (1 + tilt)
        )
        # The variance is the whole effect of rounding only while e^{th} is close to 1 + th.
        step = min(step, _LARGEST_TILTED_STEP / (1 + tilt))
        window = self._window(target, deviation)
        lowest = [self._lowest(node, tilt) for node in self._nodes]
        widest = max(
            float(loss.max()) - low for (loss, _, _), low in zip(self._nodes, lowest, strict=True)
        )
        step = max(step, max(window.length, widest) / _MOST_POINTS)
        return Grid(tilt=tilt, log_delta=log_delta, step=step, window=window, lowest=tuple(lowest))

    def _saddle(self, excess: Callable[[_Scan], FloatArray]) -> float:
        """The order at which an increasing function of it crosses 0, or the last usable one."""
        orders, scan = self._orders, self._overview
        for refine in (True, False):
            values = excess(scan)
            right = int(np.clip(np.searchsorted(values, 0.0), 1, orders.size - 1))
            low, high = values[right - 1], values[right]
            ends = orders[right - 1], orders[right]
            if refine:
                orders = np.geomspace(*ends, 8)
                scan = self._scan(orders)
        share = float(np.clip(-low / (high - low), 0.0, 1.0)) if high > low else 1.0
        return float(ends[0] ** (1 - share) * ends[1] ** share)

    def _scan(self, orders: FloatArray) -> _Scan:
        """Saddle-point estimates: the ε whose saddle is each order t, and ln δ there.

        δ(ε) = 1/(2πi) ∫ M(t) e^{-εt} / (t (1+t)) dt along a line through the t at which the
        integrand is stationary.
        """
        log_moment = np.zeros_like(orders)
        mean = np.zeros_like(orders)
        variance = 1 / orders**2 + 1 / (1 + orders) ** 2
        at_cut = np.zeros_like(orders)
        for loss, log_mass, count in self._nodes:
            exponent = np.multiply.outer(orders, loss) + log_mass
            peak = exponent.max(axis=1)
            weights = np.exp(exponent - peak[:, None])
            total = weights.sum(axis=1)
            centre = weights @ loss / total
            at_cut = np.maximum(at_cut, count * weights[:, -1] / total)
            log_moment += count * (peak + np.log(total))
            mean += count * centre
            variance += count * np.maximum(weights @ loss**2 / total - centre**2, 0.0)
        epsilon = mean - 1 / orders - 1 / (1 + orders)
        log_delta = (
            log_moment
            - epsilon * orders
            - np.log(orders * (1 + orders))
            - 0.5 * np.log(2 * np.pi * variance)
        )
        return _Scan(log_moment, epsilon, np.minimum.accumulate(log_delta), at_cut)

    def _lowest(self, node: tuple[FloatArray, FloatArray, int], tilt: float) -> float:
        """The loss up to which all smaller ones may be raised without a visible effect."""
        loss, log_mass, count = node
        exponent = tilt * loss + log_mass
        log_moment = float(np.logaddexp.reduce(exponent))
        order = np.argsort(loss, kind="stable")
        with np.errstate(divide="ignore"):
            log_below = np.log(np.cumsum(np.exp(log_mass[order])))
        effect = log_below + tilt * loss[order] - log_moment + math.log(count)
        visible = int(np.argmax(effect > math.log(NEGLIGIBLE)))
        return float(loss[order][max(visible - 1, 0)])

    def _window(self, target: Target, deviation: float) -> Window:
        """The range of the sum that the transform has to cover."""
        tilt, epsilon, log_delta = target
        margins = _MARGINS / deviation
        # Below, the tilt itself makes the tail e^{tL}: orders between 0 and t see it.
        margins_below = np.append(margins, tilt * np.array([0.25, 0.5, 0.75, 1.0]))
        orders = np.concatenate([[tilt], tilt + margins, tilt - margins_below])
        moments = self.log_moment(orders)
        here, above, below = np.split(moments, [1, 1 + margins.size])
        level = log_delta + math.log(NEGLIGIBLE)
        highs = (above - level) / (tilt + margins)
        best = int(np.argmin(highs))
        # What lies outside wraps around, keeping its tilted weight: let that be little against δ.
        lowest = max(epsilon - 4 / tilt, 0.0)
        level = min(level - (here[0] - tilt * epsilon + log_gap(tilt)), math.log(NEGLIGIBLE))
        tilted_low = float(((level + here[0] - below) / margins_below).max())
        tilted_high = float(((above - here[0] - level) / margins).min())
        low = min(tilted_low, lowest)
        high = float(highs[best])
        return Window(
            low=low,
            high=high,
            length=max(high - low, tilted_high - lowest),
            high_order=float(tilt + margins[best]),
        )


class _Scan(NamedTuple):
    log_moment: FloatArray
    epsilon: FloatArray
    log_delta: FloatArray
    at_cut: FloatArray  # expected number of losses at the cut


def _tilted(loss: FloatArray, log_mass: FloatArray, tilt: float) -> tuple[FloatArray, FloatArray]:
    exponent = tilt * loss + log_mass
    weights = np.exp(exponent - exponent.max())
    return loss, weights / weights.sum()


def _spacing(
    tilted: Sequence[tuple[FloatArray, FloatArray]], counts: Sequence[int], *, allowed: float
) -> float:
    """The h whose rounding adds the variance ``allowed`` to the tilted sum.

    A loss between two grid points gains h²/6 of variance on average; one closer to 0 than that
    (0 is a grid point) gains at most |L| h.
    """
    step = math.sqrt(6 * allowed / sum(counts))
    for _ in range(6):
        linear = constant = 0.0
        for (loss, weights), count in zip(tilted, counts, strict=True):
            near = np.abs(loss) < step / 6
            linear += count * float(weights[near] @ np.abs(loss[near]))
            constant += count * float(weights[~near].sum()) / 6
        step = 2 * allowed / (linear + math.sqrt(linear**2 + 4 * constant * allowed))
    return step

# SPDX-License-Identifier: Apache-2.0
"""One step as a privacy loss on a grid, and (ε, δ) of many steps together, never understated.

For independent losses L_1 + ... + L_T = S on one grid, δ(ε) = E[(1 - e^{ε-S})₊] under P. The
distribution of S is a power of a discrete Fourier transform. Transforming the mass itself would
bury a small δ under rounding noise, so the mass is first tilted by e^{tS}, which moves the centre
of S to about ε::

    δ(ε) = K · Σ_l p̃(l) e^{-t(l-c)} (1 - e^{ε-l})₊,     K = e^{-tc} Π M_i(t)^{n_i},

p̃ the tilted law of S and M_i the moment functions of the grid losses. Rounding errors are then
relative to δ and any δ that float64 can hold is within reach. Everything left out is added:
the mass above the transform's window (Chernoff bound), losses declared infinite, the error of
both transforms and of the power. What wraps around the window can only be counted twice.

The tilt, the spacing and the window of the grid are chosen from a rough sketch of the losses
(:func:`sketch_of`). Nothing of it enters a bound: a poor choice makes a certificate looser, never
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from dpcohort._validate import FloatArray

# One step of training as a pair of distributions, and its privacy loss on a grid.
#
# A step adds N(0, z²) noise to a clipped sum of a random batch. Whatever the data and the other
# records are, its outputs on two neighbouring data sets are no easier to tell apart than the two
# one-dimensional Gaussian mixtures P and Q below (unit noise, s = 1/z, r the sampling rate):
#
# =========  =============================  =============================  ====================
# kind       P                              Q                              covers
# =========  =============================  =============================  ====================
# remove     (1-r) N(0,1) + r N(s,1)        N(0,1)                         Poisson, zero-out
# add        N(0,1)                         (1-r) N(0,1) + r N(-s,1)       Poisson, zero-out
# replace    (1-r) N(0,1) + r N(s,1)        (1-r) N(0,1) + r N(-s,1)       Poisson, replace-one
# fixed      the symmetric pair with the profile of "remove" at 2s for     fixed, replace-one
#            ε ≥ 0 (Dong, Roth, Su 2019, subsampling theorem)
# =========  =============================  =============================  ====================
#
# The privacy loss L = ln P/Q is put on the grid {i·h} so that composition can only be overstated.
# Two moves are used, both safe because (1 - e^{ε-S})₊ is increasing in every loss and convex in
# every e^{-loss} of the sum S: the mass of a cell goes to the two ends of the cell so that its P-
# and Q-mass are kept ("connect the dots", arXiv 2207.04380), and rounding errors, the tail above
# the grid (to +∞) and the tail below it (to the first point) go upwards.


_UNIT = 2.0**-53
_OVERFLOW = 30.0  # above this exponent, expm1 is replaced by its logarithm
_SKETCH_DENSITY = 6.0  # sketch nodes per standard deviation


class GridLoss(NamedTuple):
    """A privacy loss on the grid {i·h}: mass[j] sits at loss (first + j)·h, the rest at +∞.

    Attributes:
        first: index of the first grid point.
        mass: probabilities under P, at least those of a loss that dominates the true one.
        infinity: probability of an unbounded loss (the tail cut off above the grid).
        slop: how far rounding may have understated the loss of a point.

    Example:
        >>> pair = LossPair(kind="remove", shift=1.0, rate=0.5)
        >>> grid = pair.on_grid(0.25, tail=1e-6, lowest=-0.5)
        >>> grid.first, bool(abs(grid.mass.sum() + grid.infinity - 1) < 1e-12)
        (-2, True)
    """

    first: int
    mass: FloatArray
    infinity: float
    slop: float


class Loss(Protocol):
    """The privacy loss of one use of a mechanism, in one order of the neighbouring data sets.

    Losses are hashable: equal ones are composed as one.
    """

    @property
    def is_tiny(self) -> bool:
        """Whether losses of every size need a grid of their own (:mod:`.rare_losses`)."""
        ...

    @property
    def distance(self) -> float:
        """Total variation distance of the two distributions, rounded up."""
        ...

    @property
    def largest(self) -> float:
        """No loss is larger than this."""
        ...

    def sketched(self, tail: float) -> tuple[FloatArray, FloatArray]:
        """Losses and their approximate probabilities, for choosing a grid (never for a bound)."""
        ...

    def on_grid(self, step: float, *, tail: float, lowest: float) -> GridLoss:
        """The loss on the grid {i·step}, never understated.

        Args:
            step: grid spacing h.
            tail: about how much probability may be declared an infinite loss.
            lowest: losses below this are raised to about this.
        """
        ...


class LossPair(NamedTuple):
    """The dominating pair of one step (see the table above).

    Attributes:
        kind: which row of the table.
        shift: distance between the Gaussians in units of the noise: s, or 2s for ``fixed``.
        rate: sampling rate r.

    Example:
        >>> pair = LossPair(kind="remove", shift=1.0, rate=1.0)
        >>> loss_at(pair, np.array([0.5, 1.5]))
        array([0., 1.])
    """

    kind: Literal["remove", "add", "replace", "fixed"]
    shift: float
    rate: float

    @property
    def is_tiny(self) -> bool:
        """Whether the rate is so small that losses of every size need a grid of their own."""
        return self.rate < TINY_RATE

    @property
    def largest(self) -> float:
        """No loss is larger than this; infinite but for ``add`` with sampling."""
        if self.kind != "add" or self.rate == 1:
            return math.inf
        return -math.log1p(-self.rate) * (1 + 1e-14)

    @property
    def distance(self) -> float:
        """Total variation distance of P and Q, rounded up."""
        half = self.shift if self.kind == "replace" else self.shift / 2
        return min(1.0, self.rate * math.erf(half / math.sqrt(2)) * (1 + 1e-14))

    def sketched(
        self, tail: float, *, nodes_per_deviation: float = _SKETCH_DENSITY
    ) -> tuple[FloatArray, FloatArray]:
        """Losses and their approximate probabilities, for choosing a grid (never for a bound)."""
        symmetric = self.kind == "fixed"
        low = self.shift / 2 if symmetric else -9.0
        high = _top(self, tail)
        # Half a bell needs more nodes than a whole one, on which equal weights are nearly exact.
        density = 3 * nodes_per_deviation if symmetric else nodes_per_deviation
        count = int(np.clip(density * (high - low), 64, 4096))
        width = (high - low) / count
        x = low + width * np.arange(0.5, count)
        loss = loss_at(self, x)
        base = np.exp(-(x**2) / 2) * width / np.sqrt(2 * np.pi)
        if self.kind == "add":
            return loss, base / base.sum()
        moved = np.exp(-((x - self.shift) ** 2) / 2) * width / np.sqrt(2 * np.pi)
        mass = (1 - self.rate) * base + self.rate * moved
        if not symmetric:
            return loss, mass / mass.sum()
        atom = max(1 - float(base.sum() + mass.sum()), 0.0)
        return np.concatenate([-loss, [0.0], loss]), np.concatenate([base, [atom], mass])

    def on_grid(self, step: float, *, tail: float, lowest: float) -> GridLoss:
        """The loss on the grid {i·step}, never understated.

        Args:
            step: grid spacing h.
            tail: about how much probability may be declared an infinite loss.
            lowest: losses below this are raised to about this.
        """
        last = int(np.ceil(loss_at(self, np.array([_top(self, tail)]))[0] / step)) + 1
        lowest_point = min(math.floor(lowest / step), last - 2)
        symmetric = self.kind == "fixed"
        first = 0 if symmetric else lowest_point
        losses = step * np.arange(first, last + 1, dtype=np.float64)
        mass, below, above, q_above = masses_between(self, losses, first, step)
        slop = 128 * _UNIT * float(np.abs(losses[[0, -1]]).max())
        if not symmetric:
            mass[0] += below
            return GridLoss(first=first, mass=mass, infinity=above, slop=slop)
        # Positive losses as ``remove``, their mirror image, and an atom at 0.
        mass[0] += q_above
        mass[last] += (1 - self.rate) * (2 * float(ndtr(self.shift / 2)) - 1)
        cut = min(max(lowest_point + last, 0), last)
        mass[cut] += mass[:cut].sum()
        return GridLoss(first=cut - last, mass=mass[cut:], infinity=above, slop=slop)


def loss_at(pair: LossPair, x: FloatArray) -> FloatArray:
    """Privacy loss at output x; increasing in x."""
    if pair.kind == "add":
        return -_remove_loss(pair, -x)
    if pair.kind == "replace":
        return _remove_loss(pair, x) - _remove_loss(pair, -x)
    return _remove_loss(pair, x)


def output_at(pair: LossPair, loss: FloatArray) -> FloatArray:
    """The output x with this privacy loss; ±inf outside the range of the loss."""
    if pair.kind == "add":
        return -_remove_output(pair, -loss)
    if pair.kind == "replace":
        # With v = e^{s x - L/2}: v - 1/v = 2 (1-r)/r e^{s²/2} sinh(L/2).
        half = np.abs(loss) / 2
        with np.errstate(divide="ignore", over="ignore"):
            log_sinh = np.where(
                half > _OVERFLOW, half - np.log(2.0), np.log(np.sinh(np.minimum(half, 31.0)))
            )
            log_y = np.log1p(-pair.rate) - np.log(pair.rate) + pair.shift**2 / 2 + log_sinh
            lift = np.where(
                log_y > _OVERFLOW,
                log_y + np.log(2.0),
                np.arcsinh(np.exp(np.minimum(log_y, 31.0))),
            )
        return np.asarray(np.sign(loss) * (half + lift) / pair.shift, dtype=np.float64)
    return _remove_output(pair, loss)


def _remove_loss(pair: LossPair, x: FloatArray) -> FloatArray:
    exponent = pair.shift * x - pair.shift**2 / 2
    # below -1 a rate near 1 would cancel, and above a small one lose the digits of a small loss
    middle = (exponent <= _OVERFLOW) & ((exponent >= -1) | (pair.rate <= 0.5))
    near_zero = np.log1p(pair.rate * np.expm1(np.where(middle, exponent, 0.0)))
    with np.errstate(divide="ignore"):  # log 0 at rate 1, where this is the exponent itself
        far = np.logaddexp(np.log1p(-pair.rate), np.log(pair.rate) + exponent)
    return np.where(middle, near_zero, far)


def _remove_output(pair: LossPair, loss: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        ratio = np.expm1(np.clip(loss, -1.0, _OVERFLOW)) / pair.rate
        near_zero = np.log1p(np.maximum(ratio, -1.0))
        # log(1 - rate) is the smallest loss; at rate 1 there is none, and far is the loss itself
        unseen = np.exp(np.minimum(np.log1p(-pair.rate) - loss, 0.0))
        far = loss + np.log1p(-unseen) - np.log(pair.rate)
    exponent = np.where((loss < -1) | (loss > _OVERFLOW), far, near_zero)
    return exponent / pair.shift + pair.shift / 2


def _top(pair: LossPair, tail: float) -> float:
    """An output above which P has at most ``tail`` (for ``fixed``: the positive part of P)."""
    top = -float(ndtri(tail / 2))
    if pair.kind == "add":
        return top
    moved = min(tail / (2 * pair.rate), 0.5)
    return max(top, pair.shift - float(ndtri(moved)), pair.shift / 2 + 1.0)


#: The distinct steps and how often each is taken.
Parts = Sequence[tuple[Loss, int]]


def masses_between(
    pair: LossPair, losses: FloatArray, first: int, step: float, x: FloatArray | None = None
) -> tuple[FloatArray, float, float, float]:
    """P-mass of grid points, that of the cells between them split over their two ends.

    Args:
        pair: the step.
        losses: of the points, ``step`` apart.
        first: number of the first point on the grid; for ``fixed`` at least 0.
        step: grid spacing.
        x: the outputs that bound the cells, if not those with these losses.

    Returns:
        The masses, rounded up; for ``fixed`` with the mirror images of the points, from the mirror
        image of the last one up to it. Then what lies outside: P-mass below and above, Q-mass
        above.

    Example:
        >>> pair = LossPair(kind="remove", shift=1.0, rate=0.5)
        >>> mass, below, above, _ = masses_between(pair, np.array([-0.25, 0.0, 0.25]), -1, 0.25)
        >>> bool(abs(below + mass.sum() + above - 1) < 1e-12)
        True
    """
    x = output_at(pair, losses) if x is None else x
    base = _normal_cells(x)
    moved = base if pair.kind == "add" else _normal_cells(x - pair.shift)
    mirror = _normal_cells(x + pair.shift) if pair.kind in ("add", "replace") else base
    p = base if pair.kind == "add" else (1 - pair.rate) * base + pair.rate * moved
    q = (1 - pair.rate) * base + pair.rate * mirror if mirror is not base else base
    # P - Q = r (moved - mirror): formed directly, it keeps its accuracy when s is tiny.
    difference = pair.rate * (moved[0] - mirror[0])[1:-1]
    difference_error = pair.rate * (moved[1] + mirror[1])[1:-1]
    high, error = _share_above(
        losses[:-1], step, p[:, 1:-1], q[:, 1:-1], difference, difference_error
    )
    p_mass, q_mass = p.sum(axis=0)[1:-1], q.sum(axis=0)[1:-1]
    high_up, high_down = (np.clip(share, 0.0, p_mass) for share in (high + error, high - error))
    mass = np.append(p_mass - high_up, 0.0)
    mass[1:] += high_up
    below, above, q_above = float(p[0, 0]), float(p[0, -1]), float(q[0, -1])
    if pair.kind != "fixed":
        return mass, below, above, q_above
    # A mirrored point carries the Q-mass of its original; there, upwards is towards 0.
    low = np.minimum(high_down * np.exp(-losses[1:]), q_mass)
    last = first + losses.size - 1
    both = np.zeros(2 * last + 1)
    both[last + first :] += mass
    both[: last - first] += low[::-1]
    both[1 : last - first + 1] += (q_mass - low)[::-1]
    return both, below, above, q_above


def _normal_cells(x: FloatArray) -> FloatArray:
    """Standard normal mass below, between and above consecutive x; and its rounding error between.

    Differences are taken between the smaller tails, which keeps relative accuracy far out.
    """
    tail = ndtr(-np.abs(x))
    left, right = tail[:-1], tail[1:]
    cells = np.zeros((2, x.size + 1))
    mass = np.abs(right - left)
    straddles = (x[:-1] < 0) & (x[1:] > 0)
    mass[straddles] = (0.5 - left[straddles]) + (0.5 - right[straddles])
    square = np.minimum(x * x, 1e4)  # an infinite x has no tail and no error
    error = 8 * _UNIT * (1 + square) * tail
    cells[0, 1:-1], cells[1, 1:-1] = mass, error[1:] + error[:-1]
    cells[0, 0] = tail[0] if x[0] < 0 else 1 - tail[0]
    cells[0, -1] = tail[-1] if x[-1] > 0 else 1 - tail[-1]
    return cells


def _share_above(
    low: FloatArray,
    step: float,
    p: FloatArray,
    q: FloatArray,
    difference: FloatArray,
    difference_error: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """P-mass for the upper end of each cell, (p - q e^l)/(1 - e^{-h}), and its rounding error.

    Written through ``difference`` = p - q so that nothing cancels twice: for l ≥ 0 as
    difference - q (e^l - 1), for l < 0 as e^l difference - p (e^l - 1). The second row of p, q
    is their rounding error.
    """
    growth = np.expm1(np.minimum(low, 700.0))  # a smaller growth only raises the share
    decay = np.minimum(1.0 + growth, 1.0)
    second, second_error = np.where(low >= 0, q, p) * [growth, np.abs(growth)]
    error = decay * difference_error + second_error + 4 * _UNIT * np.abs(second)
    scale = -np.expm1(-step)
    return (decay * difference - second) / scale, error / scale


def largest_sum(parts: Parts) -> float:
    """The sum of all losses if every one is as large as it can be: from there on δ is 0.

    Example:
        >>> round(largest_sum([(LossPair(kind="add", shift=1.0, rate=0.5), 2)]), 6)
        1.386294
    """
    return sum(n * loss.largest for loss, n in parts)


NEGLIGIBLE = 1e-6  # what a cut tail may add to δ, relatively
SMALLEST_TAIL = 1e-290
#: Below this rate nearly all losses are so small that one grid does not serve them and the others.
TINY_RATE = 5e-4
_MOST_POINTS = 2**20
_LARGEST_TILTED_STEP = 0.25
_LARGEST_WEIGHT_AT_CUT = 1e-3
_ORDERS = 36
_MARGINS = np.array([0.35, 0.7, 1.2, 2.0, 3.0, 4.0, 5.0, 7.0])


class Grid(NamedTuple):
    """Tilt t, spacing h and window of the sum, chosen for an expected answer (ε, δ).

    Attributes:
        tilt: order t of the exponential tilt.
        log_delta: expected ln δ.
        step: grid spacing h.
        low: lower end of the range of the sum that a transform covers.
        length: of that range; above it the sum has a probability that is negligible against δ.
        high_order: order of the Chernoff bound on what lies above the range.
        lowest: for each kind of step, the loss to which all smaller ones may be raised.

    Example:
        >>> sketch = sketch_of([(LossPair("remove", 0.5, 0.2), 10)], math.log(1e-5))
        >>> grid = grid_for(sketch, at_delta(sketch, math.log(1e-5)), tolerance=1e-4)
        >>> grid.low < 1.0 < grid.low + grid.length
        True
    """

    tilt: float
    log_delta: float
    step: float
    low: float
    length: float
    high_order: float
    lowest: tuple[float, ...]


def log_gap(order: float) -> float:
    """Logarithm of max_u e^{-tu} (1 - e^{-u}) = t^t/(1+t)^{1+t}, the gap between a moment and δ.

    Example:
        >>> round(log_gap(1.0), 4)
        -1.3863
    """
    return -math.log1p(order) - order * math.log1p(1 / order)


#: Where the answer is expected: the saddle t of δ(ε), ε, and ln δ.
Target = tuple[float, float, float]


#: Losses of a step, logarithms of their masses, and how often the step is taken.
Node = tuple[FloatArray, FloatArray, int]
#: The distinct steps on a few hundred nodes each, by which their moments are computed; orders that
#: are of use, and the scan of the moments there.
Sketch = tuple[list[Node], FloatArray, FloatArray]


def sketch_of(parts: Parts, log_delta: float) -> Sketch:
    """A sketch of the steps, from which a grid is chosen.

    Args:
        parts: the distinct steps (pair, number of steps).
        log_delta: about the smallest ln δ of interest, to know how far tails matter.

    Example:
        >>> nodes, _, _ = sketch_of([(LossPair("remove", 0.5, 1.0), 4)], math.log(1e-5))
        >>> bool(np.isclose(log_moment(nodes, np.array([3.0]))[0], 4 * 0.5**2 / 2 * 3.0 * 4.0))
        True
    """
    total = sum(count for _, count in parts)
    tail = max(NEGLIGIBLE * math.exp(max(log_delta, -600.0)) / total, SMALLEST_TAIL)
    drawn = [(*loss.sketched(tail), count) for loss, count in parts]
    nodes = [(loss, np.log(np.maximum(mass, 1e-320)), n) for loss, mass, n in drawn]
    spread = math.sqrt(sum(n * float(mass @ loss**2) for loss, mass, n in drawn))
    low, high = math.log(min(1e-2 / spread, 1e-2)), math.log(max(100 / spread, 100.0))
    orders = np.exp(np.linspace(low, high, _ORDERS))
    scan = _scan(nodes, orders)
    # Orders that put weight on the loss at which the tail was cut are of no use.
    usable = max(2, int(np.argmax(np.append(scan[3], np.inf) > _LARGEST_WEIGHT_AT_CUT)))
    return nodes, orders[:usable], scan[:, :usable]


def log_moment(nodes: Sequence[Node], orders: FloatArray) -> FloatArray:
    """Σ n_i ln E[e^{t L_i}] at every order t."""
    result = np.zeros_like(orders)
    for loss, log_mass, count in nodes:
        exponent = np.multiply.outer(orders, loss) + log_mass
        peak = exponent.max(axis=1)
        exponent -= peak[:, None]
        result += count * (peak + np.log(np.exp(exponent).sum(axis=1)))
    return result


def at_epsilon(sketch: Sketch, epsilon: float) -> Target:
    """Where to look for δ at this ε."""
    tilt, (log_moment, own_epsilon, log_delta, _) = _saddle(sketch, epsilon=epsilon)
    # Off its own saddle only the Chernoff bound says something about δ.
    if not abs(own_epsilon - epsilon) * tilt < 1:
        log_delta = log_moment - epsilon * tilt + log_gap(tilt) - 3.0
    return tilt, epsilon, min(float(log_delta), 0.0)


def at_delta(sketch: Sketch, log_delta: float) -> Target:
    """Where to look for ε at this δ."""
    tilt, (log_moment, epsilon, own_log_delta, _) = _saddle(sketch, log_delta=log_delta)
    if not abs(own_log_delta - log_delta) < 1:
        epsilon = (log_moment - log_delta + log_gap(tilt)) / tilt
    if epsilon <= 0:
        tilt, epsilon, _ = at_epsilon(sketch, 0.0)
    return tilt, float(epsilon), log_delta


def grid_for(sketch: Sketch, target: Target, *, tolerance: float, least: float = 0.25) -> Grid:
    """A grid on which ε is overstated by about ``tolerance``.

    Relatively; an ε below ``least`` standard deviations of the tilted sum is treated as that.
    """
    (nodes, _, _), (tilt, epsilon, log_delta) = sketch, target
    tilted = [(loss, _tilted(loss, log_mass, tilt), n) for loss, log_mass, n in nodes]
    variance = sum(n * float(w @ (loss - w @ loss) ** 2) for loss, w, n in tilted)
    # a sketch may miss all but one node
    deviation = max(math.sqrt(variance), 1e-6 / tilt)
    allowed = 2 * tolerance * max(epsilon, least * deviation) / (1 + tilt)
    step = _spacing(tilted, allowed)
    # The variance is the whole effect of rounding only while e^{th} is close to 1 + th.
    step = min(step, _LARGEST_TILTED_STEP / (1 + tilt))
    low, length, high_order = _window(nodes, target, deviation)
    lowest = [_lowest(node, tilt) for node in nodes]
    widest = max(float(loss.max()) - end for (loss, _, _), end in zip(nodes, lowest, strict=True))
    return Grid(
        tilt=tilt,
        log_delta=log_delta,
        step=max(step, max(length, widest) / _MOST_POINTS),
        low=low,
        length=length,
        high_order=high_order,
        lowest=tuple(lowest),
    )


def _saddle(
    sketch: Sketch, *, epsilon: float | None = None, log_delta: float = 0.0
) -> tuple[float, FloatArray]:
    """The order whose saddle has this ε, or this ln δ, or the last usable one; and its scan."""

    def excess(scan: FloatArray) -> FloatArray:  # increasing in the order
        return np.asarray(scan[1] - epsilon if epsilon is not None else log_delta - scan[2])

    nodes, orders, scan = sketch
    for refine in (True, False):
        values = excess(scan)
        right = int(np.clip(np.searchsorted(values, 0.0), 1, orders.size - 1))
        low, high = values[right - 1], values[right]
        ends = orders[right - 1], orders[right]
        if refine:
            orders = np.geomspace(*ends, 8)
            scan = _scan(nodes, orders)
    share = float(np.clip(-low / (high - low), 0.0, 1.0)) if high > low else 1.0
    tilt = float(ends[0] ** (1 - share) * ends[1] ** share)
    return tilt, _scan(nodes, np.array([tilt]))[:, 0]


def _scan(nodes: Sequence[Node], orders: FloatArray) -> FloatArray:
    """Saddle-point estimates: ln M at each order t, the ε whose saddle it is, and ln δ there.

    The last row is the expected number of losses at the cut.

    δ(ε) = 1/(2πi) ∫ M(t) e^{-εt} / (t (1+t)) dt along a line through the t at which the
    integrand is stationary.
    """
    log_moment = np.zeros_like(orders)
    mean = np.zeros_like(orders)
    variance = 1 / orders**2 + 1 / (1 + orders) ** 2
    at_cut = np.zeros_like(orders)
    for loss, log_mass, count in nodes:
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
    return np.stack([log_moment, epsilon, np.minimum.accumulate(log_delta), at_cut])


def _lowest(node: Node, tilt: float) -> float:
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


def _window(nodes: Sequence[Node], target: Target, deviation: float) -> tuple[float, float, float]:
    """Start and length of the range that the transform has to cover, and its high order."""
    tilt, epsilon, log_delta = target
    margins = _MARGINS / deviation
    # Below, the tilt itself makes the tail e^{tL}: orders between 0 and t see it.
    margins_below = np.append(margins, tilt * np.array([0.25, 0.5, 0.75, 1.0]))
    orders = np.concatenate([[tilt], tilt + margins, tilt - margins_below])
    moments = log_moment(nodes, orders)
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
    length = max(float(highs[best]) - low, tilted_high - lowest)
    return low, length, float(tilt + margins[best])


def _tilted(loss: FloatArray, log_mass: FloatArray, tilt: float) -> FloatArray:
    exponent = tilt * loss + log_mass
    weights = np.exp(exponent - exponent.max())
    return np.asarray(weights / weights.sum())


def _spacing(tilted: Sequence[tuple[FloatArray, FloatArray, int]], allowed: float) -> float:
    """The h whose rounding adds the variance ``allowed`` to the tilted sum.

    A loss between two grid points gains h²/6 of variance on average; one closer to 0 than that
    (0 is a grid point) gains at most |L| h.
    """
    step = math.sqrt(6 * allowed / sum(count for _, _, count in tilted))
    for _ in range(6):
        linear = constant = 0.0
        for loss, weights, count in tilted:
            near = np.abs(loss) < step / 6
            linear += count * float(weights[near] @ np.abs(loss[near]))
            constant += count * float(weights[~near].sum()) / 6
        step = 2 * allowed / (linear + math.sqrt(linear**2 + 4 * constant * allowed))
    return step


_USUAL_LOG_DELTA = math.log(1e-12)
_ATTEMPTS = 4
# Where rare large losses decide δ there is no useful saddle: if the Chernoff bound is this much
# above the answer, a mild tilt does better.
_POOR_TILT = 1e3
_MILD_TILT = 1.0
_LARGEST_EXPONENT = 300.0
_FFT_ERROR = 8 * _UNIT  # relative error of a transform per doubling of its length


#: The losses of all steps on one grid, and how often each is taken.
GridSteps = Sequence[tuple[GridLoss, int]]


class Profile(NamedTuple):
    """An upper bound on δ(ε) at every ε from ``first_loss`` up.

    Between grid points the bound is linear in e^ε, as the true profile of a grid loss is.
    """

    first_loss: float
    step: float
    above: FloatArray  # K Σ_{i ≥ j} of the untilted mass
    at_points: FloatArray  # δ at grid point j without the additions
    added: float
    slop: float


def profile_delta(profile: Profile, epsilon: float) -> float:
    """Upper bound on δ at this ε (1 where the window says nothing).

    Example:
        >>> profile = Profile(first_loss=0.0, step=1.0, above=np.array([1.0, 0.1]),
        ...                   at_points=np.array([0.06, 0.0]), added=0.01, slop=0.0)
        >>> profile_delta(profile, 0.0), profile_delta(profile, 5.0)
        (0.07..., 0.01)
    """
    position = (epsilon - profile.slop - profile.first_loss) / profile.step
    if position < 0:
        return 1.0
    index = math.floor(position) + 1
    if index >= profile.above.size:
        return min(1.0, profile.added)
    share = -math.expm1((position - index) * profile.step)
    value = profile.at_points[index] + share * (profile.above[index] - profile.at_points[index])
    return float(min(1.0, value + profile.added))


def profile_epsilon(profile: Profile, delta: float) -> float | None:
    """Smallest ε ≥ 0 whose δ is at most this one, None if the window does not reach it."""
    room = delta - profile.added
    if room <= 0:
        return None
    index = int(np.searchsorted(-profile.at_points, -room))
    if index == profile.at_points.size:
        return None
    loss = profile.first_loss + index * profile.step
    if index > 0:
        # δ is met at this point, not at the one before: solve between the two.
        spread = profile.above[index] - profile.at_points[index]
        share = (room - profile.at_points[index]) / spread if spread > 0 else 0.0
        loss += math.log1p(-min(share, -math.expm1(-profile.step)))
    elif loss > 0:
        return None
    return max(0.0, loss + profile.slop)


def grid_delta(parts: Parts, epsilon: float, *, tolerance: float = 1e-4) -> float:
    """Upper bound on δ at this ε of independent steps; one direction of neighbours.

    Args:
        parts: the distinct steps and how often each is taken.
        epsilon: at least 0.
        tolerance: aim for this relative excess of ε (the grid is chosen for it).

    Example:
        >>> pair = LossPair(kind="remove", shift=1 / 1.5, rate=0.2)
        >>> 0.99e-5 < grid_delta([(pair, 100)], 7.555) < 1e-5
        True
    """
    best, log_delta, largest_tilt = 1.0, _USUAL_LOG_DELTA, math.inf
    for _ in range(_ATTEMPTS):
        sketch = sketch_of(parts, log_delta)
        tilt, epsilon, expected = at_epsilon(sketch, epsilon)
        tilt, expected = min(tilt, largest_tilt), min(expected, log_delta)
        grid = grid_for(sketch, (tilt, epsilon, expected), tolerance=tolerance)
        profile, chernoff = _bounds(parts, grid)
        found, rough = profile_delta(profile, epsilon), chernoff_delta(chernoff, epsilon)
        best = min(best, found, rough)
        if profile.added > 1e-3 * found:
            log_delta = min(expected - 8, math.log(max(found - profile.added, 1e-280)))
        elif rough > _POOR_TILT * found and tilt > _MILD_TILT:
            largest_tilt = _MILD_TILT
        else:
            break
    return best


def grid_epsilon(parts: Parts, delta: float, *, tolerance: float = 1e-4) -> float:
    """Upper bound on the smallest ε ≥ 0 at this δ, as :func:`grid_delta` is one on δ.

    Example:
        >>> pair = LossPair(kind="remove", shift=1 / 1.5, rate=0.2)
        >>> 7.5537 < grid_epsilon([(pair, 100)], 1e-5) < 7.555
        True
    """
    log_delta = math.log(delta)
    sketch = sketch_of(parts, log_delta)
    tilt, expected, log_delta = at_delta(sketch, log_delta)
    best, least = math.inf, 0.25
    for _ in range(_ATTEMPTS):
        grid = grid_for(sketch, (tilt, expected, log_delta), tolerance=tolerance, least=least)
        profile, chernoff = _bounds(parts, grid)
        found = profile_epsilon(profile, delta)
        best = min(best, chernoff_epsilon(chernoff, delta), math.inf if found is None else found)
        poor = tilt > _MILD_TILT and chernoff_delta(chernoff, best) > _POOR_TILT * delta
        near = found is not None and abs(found - expected) <= expected / 2
        if best == 0 or (near and not poor):
            break
        least = 0.025
        tilt, expected = at_epsilon(sketch, expected / 2 if found is None else best)[:2]
        if poor:
            tilt = _MILD_TILT
    return best


def _bounds(parts: Parts, grid: Grid) -> tuple[Profile, Chernoff]:
    """Bounds on this grid: a sharp one around the expected answer, a rough one everywhere."""
    total = sum(count for _, count in parts)
    tail = max(NEGLIGIBLE * math.exp(max(grid.log_delta, -650.0)) / total, SMALLEST_TAIL)
    steps = [
        (loss.on_grid(grid.step, tail=tail, lowest=lowest), count)
        for (loss, count), lowest in zip(parts, grid.lowest, strict=True)
    ]
    infinity, slop = beyond_grid(steps)
    log_moment, tilted = tilt_steps(steps, grid.step, grid.tilt)
    first = math.floor(grid.low / grid.step) - 1
    length = fast_length(math.ceil(grid.length / grid.step) + 16)
    law, error = _law_of_sum(steps, tilted, first, length)
    loss = grid.step * (first + np.arange(length, dtype=np.float64))
    order = grid.high_order
    above = tilt_steps(steps, grid.step, order)[0] - order * float(loss[-1])
    rough = (grid.tilt, log_moment, infinity, slop)
    over = math.exp(min(above, 0.0))
    return profile_of_law(law, error, rough, loss=loss, step=grid.step, over=over), rough


def profile_of_law(
    law: FloatArray, error: float, rough: Chernoff, *, loss: FloatArray, step: float, over: float
) -> Profile:
    """The bound on δ(ε) that the tilted law of a sum gives.

    Args:
        law: tilted probabilities of the sum, up to ``error`` each.
        error: largest error of an entry.
        rough: the bound that the tilt alone gives: its order t, ln E e^{tS}, the probability of an
            infinite loss, and how far rounding may have understated a sum.
        loss: the sums, ``step`` apart.
        step: grid spacing.
        over: probability of a sum above the last one.

    Example:
        >>> one = profile_of_law(np.array([0.9, 0.1]), 0.0, (0.0, 0.0, 0.0, 0.0),
        ...                      loss=np.array([0.0, 1.0]), step=1.0, over=0.0)
        >>> round(profile_delta(one, 0.0), 4)
        0.0632
    """
    tilt, log_moment, infinity, slop = rough
    rounding = 8 * _UNIT * (law.size + tilt * float(np.abs(loss[[0, -1]]).max()))
    exponent = log_moment + rounding - tilt * loss
    useful = exponent < _LARGEST_EXPONENT  # elsewhere the bound would exceed 1 by far
    if not useful[-1]:
        over, useful = 1.0, loss == loss[-1]
    untilted = (np.maximum(law[useful], 0.0) + error) * np.exp(
        np.minimum(exponent[useful], _LARGEST_EXPONENT)
    )
    above = np.cumsum(untilted[::-1])[::-1]
    # D_j = Σ_{i>j} u_i (1 - e^{-(i-j)h}) = e^{-h} D_{j+1} + (1 - e^{-h}) A_{j+1}: all terms
    # are positive, so nothing cancels.
    shifted = np.append(above[1:], 0.0)[::-1] * -math.expm1(-step)
    at_points = _discounted_sums(shifted, math.exp(-step))
    return Profile(
        first_loss=float(loss[useful][0]),
        step=step,
        above=above,
        at_points=np.maximum.accumulate(at_points)[::-1],
        added=infinity + over,
        slop=slop,
    )


def beyond_grid(steps: GridSteps) -> tuple[float, float]:
    """Probability of a loss declared infinite, and how far rounding may have understated the sum.

    Example:
        >>> loss = GridLoss(first=0, mass=np.array([0.5]), infinity=0.5, slop=0.0)
        >>> infinity, slop = beyond_grid([(loss, 2)])
        >>> round(infinity, 12), slop
        (0.75, 0.0)
    """
    finite = sum(
        count * (math.log1p(-loss.infinity) if loss.infinity < 1 else -math.inf)
        for loss, count in steps
    )
    return -math.expm1(finite), sum(count * loss.slop for loss, count in steps)


def tilt_steps(steps: GridSteps, step: float, order: float) -> tuple[float, list[FloatArray]]:
    """Σ n ln M(t) (rounded up), and each loss's mass tilted by e^{tL} and normalised.

    Example:
        >>> loss = GridLoss(first=0, mass=np.array([0.5, 0.5]), infinity=0.0, slop=0.0)
        >>> bool(abs(tilt_steps([(loss, 2)], 1.0, 0.0)[0]) < 1e-12)
        True
    """
    log_moment, tilted = 0.0, []
    for grid, count in steps:
        exponent = order * step * (grid.first + np.arange(grid.mass.size))
        peak = float(exponent[grid.mass > 0].max())
        weights = grid.mass * np.exp(np.minimum(exponent - peak, 0.0))
        total = float(weights.sum())
        tilted.append(weights / total)
        log_moment += count * (peak + math.log(total))
        log_moment += 8 * _UNIT * count * (16 + abs(peak) + abs(math.log(total)))
    return log_moment, tilted


#: A bound looser than a profile, but valid at every ε, δ ≤ M e^{-εt} t^t/(1+t)^{1+t}: the order t,
#: ln M, the probability of an infinite loss, and how far rounding may have understated a sum.
Chernoff = tuple[float, float, float, float]


def chernoff_delta(bound: Chernoff, epsilon: float) -> float:
    """Upper bound on δ at this ε.

    Example:
        >>> chernoff_delta((1.0, 0.0, 0.0, 0.0), 0.0)
        0.25
    """
    tilt, log_moment, infinity, slop = bound
    exponent = log_moment - tilt * (epsilon - slop) + log_gap(tilt)
    return math.exp(min(exponent, 0.0)) + infinity


def chernoff_epsilon(bound: Chernoff, delta: float) -> float:
    """Upper bound on ε at this δ.

    Example:
        >>> chernoff_epsilon((1.0, 0.0, 0.0, 0.0), 0.25)
        0.0
    """
    tilt, log_moment, infinity, slop = bound
    if delta <= infinity:
        return math.inf
    return max(0.0, (log_moment - math.log(delta - infinity) + log_gap(tilt)) / tilt + slop)


def _discounted_sums(terms: FloatArray, factor: float) -> FloatArray:
    """y_k = x_k + factor y_{k-1}, by doubling; positive terms only, so nothing cancels."""
    sums, reach = terms.copy(), 1
    while reach < sums.size and factor > 0:
        sums[reach:] += factor * sums[:-reach]
        factor, reach = factor * factor, 2 * reach
    return sums


def fast_length(least: int) -> int:
    """The shortest transform of at least so many points that is quick: 2^a 3^b 5^c of them.

    Example:
        >>> fast_length(1001)
        1024
    """
    return min(odd << ((least - 1) // odd).bit_length() for odd in _ODD_LENGTHS)


#: All 3^b 5^c up to twice the longest transform there is.
_ODD_LENGTHS: list[int] = [
    odd for b in range(15) for c in range(11) if (odd := 3**b * 5**c) < 2**22
]


def _law_of_sum(
    steps: GridSteps, tilted: Sequence[FloatArray], first: int, length: int
) -> tuple[FloatArray, float]:
    """Law of the sum, wrapped onto ``length`` points from ``first``, and its largest error.

    Example:
        >>> loss = GridLoss(first=0, mass=np.array([0.5, 0.5]), infinity=0.0, slop=0.0)
        >>> law, error = _law_of_sum([(loss, 2)], [loss.mass], first=0, length=4)
        >>> [round(float(p), 9) for p in law[:3]], error < 1e-12
        ([0.25, 0.5, 0.25], True)
    """
    log_size = np.zeros(length // 2 + 1)  # ln |transform of the sum|
    log_cover = np.zeros_like(log_size)  # the same from moduli raised by their error
    angle = np.zeros_like(log_size)
    origin = 0
    covers = []
    depth = math.log2(length)
    for (loss, count), mass in zip(steps, tilted, strict=True):
        index = np.arange(mass.size)
        centre = round(float(mass @ index))
        folded = np.bincount((index - centre) % length, weights=mass, minlength=length)
        spectrum = np.fft.rfft(folded)
        error = _FFT_ERROR * depth * math.sqrt(length * float(folded @ folded))
        size = np.abs(spectrum)
        covers.append((count * (error + 16 * _UNIT), size + error))
        log_cover += count * np.log(size + error)
        log_size += count * np.log(np.maximum(size, 1e-300))
        angle += count * np.angle(spectrum)
        origin += count * (loss.first + centre)
    # An error in one factor of a product is multiplied by the other factors.
    cover = np.exp(np.minimum(log_cover, 0.0))
    power_error = sum(weight * float(np.mean(cover / size)) for weight, size in covers)
    law = np.fft.irfft(np.exp(log_size) * np.exp(1j * angle), length)
    inverse_error = _FFT_ERROR * depth * math.sqrt(float(law @ law))
    return np.roll(law, (origin - first) % length), 2 * power_error + inverse_error

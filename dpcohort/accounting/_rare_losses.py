# SPDX-License-Identifier: Apache-2.0
"""Many steps at tiny sampling rates: losses of every size on a grid of their own.

At a rate of 1e-5 nearly every step has a privacy loss of about 1e-5, and a few have a large one,
which decide δ. No single grid serves both: one that is fine enough for the small losses is too
long for the large ones, and on a coarse one every small loss is rounded up, many thousand times.
So the losses are sorted by size into levels, and each level has its own spacing h₀ < h₁ < ... .

A step says first whether its loss is one of the top level, and shows it if so; if not, whether it
is one of the next, and so on. It becomes no more private when every level is played in every
step, whatever the levels above it said. Then the levels are independent and their losses add up::

    S ≤ Σ_{T steps} L⁽⁰⁾ + Σ_j Σ_{events of level j} (L⁽ʲ⁾ - ν_{j-1}),

ν_j = ln P/Q of "level j or lower". The T-fold law of level 0 is computed on its grid and rounded
to the next one *once*, instead of T times; there the events of level 1 are added, and so on.
All rounding goes upwards, as in :mod:`.composition`, and what is left out is added to δ.

A level above the lowest has no event in most steps. Its law is (1-p)^T times "none" plus the rest,
and only the rest is transformed, so that rounding is relative to the mass of the events.

How the losses are sorted is chosen from a rough sketch of them, which comes first below: the
spacing of the largest losses follows from how steeply δ falls with ε there, the number of levels
from how much variance rounding would add to the sum of smaller ones. Nothing of it enters a bound:
a poor choice makes a certificate looser, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.accounting._composition import (
    SMALLEST_TAIL,
    Chernoff,
    GridLoss,
    GridSteps,
    LossPair,
    Profile,
    beyond_grid,
    chernoff_delta,
    chernoff_epsilon,
    fast_length,
    grid_delta,
    grid_epsilon,
    largest_sum,
    loss_at,
    masses_between,
    output_at,
    profile_delta,
    profile_epsilon,
    profile_of_law,
    tilt_steps,
)

#: The distinct steps, all at tiny rates, and how often each is taken.
PairParts = Sequence[tuple[LossPair, int]]

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
        >>> sketch = LevelSketch([(pair, 50_000)], 0.2, math.log(1e-5), coarseness=1.0)
        >>> len(sketch.steps), len(sketch.bounds), sketch.steps[0] < sketch.steps[-1]
        (3, 2, True)
    """

    def __init__(
        self, parts: PairParts, epsilon: float, log_delta: float, coarseness: float
    ) -> None:
        loss, weight = loss_nodes(parts, math.exp(log_delta))
        top = epsilon + FAR + _drift(parts)
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


def loss_nodes(parts: PairParts, delta: float) -> tuple[FloatArray, FloatArray]:
    """Losses, and the number of steps that have about that loss.

    Example:
        >>> loss, count = loss_nodes([(LossPair(kind="remove", shift=2.0, rate=1e-5), 50)], 1e-5)
        >>> round(float(count.sum()), 6)
        50.0
    """
    total = sum(count for _, count in parts)
    tail = max(_NEGLIGIBLE * delta / total, SMALLEST_TAIL)
    nodes = [
        (*pair.sketched(tail, nodes_per_deviation=_NODES_PER_DEVIATION), count)
        for pair, count in parts
    ]
    return (
        np.concatenate([loss for loss, _, _ in nodes]),
        np.concatenate([count * mass for _, mass, count in nodes]),
    )


def first_epsilon(parts: PairParts, delta: float) -> float:
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


ComplexArray = NDArray[np.complex128]

#: Of outputs of a step: its two ends.
Interval = tuple[float, float]

_UNIT = 2.0**-53
_FFT_ERROR = 8 * _UNIT  # relative error of a transform per doubling of its length
_ATTEMPTS = 6
_SMALLEST_LOG_DELTA = -50.0  # where a closer bound is not looked for
_MOST_SUMS = 2**21  # points of the law of a sum
_MOST_NODES = 400  # of a level, where its range is looked for
_LEAST_EPSILON = 1e-6  # that a grid is chosen for
# A level whose most likely loss has at least this probability and that has at most so many other
# losses in all steps is transformed without it.
_SPARSE = 0.75
_MOST_EVENTS = 500.0


def rare_delta(
    parts: PairParts, epsilon: float, *, coarseness: float = 1.0, expected: float = 1e-7
) -> float:
    """Upper bound on δ at this ε of independent steps at tiny rates; one direction of neighbours.

    Args:
        parts: the distinct steps and how often each is taken.
        epsilon: at least 0.
        coarseness: factor on the variance that rounding may add; 1 is accurate.
        expected: about which δ is asked for; where it is much smaller, its bound is looser.

    Example:
        >>> parts = [(LossPair(kind="remove", shift=1 / 0.45, rate=1e-5), 1000)]
        >>> bool(0.9e-5 < rare_delta(parts, rare_epsilon(parts, 1e-5)) <= 1.1e-5)
        True
    """
    if epsilon >= largest_sum(parts):
        return 0.0
    best, log_delta = 1.0, math.log(expected)
    for _ in range(_ATTEMPTS):
        bounds = _profile(
            parts, LevelSketch(parts, max(epsilon, _LEAST_EPSILON), log_delta, coarseness)
        )
        if bounds is None:
            return min(best, grid_delta(parts, epsilon))
        profile, chernoff = bounds
        found = profile_delta(profile, epsilon)
        best = min(best, found, chernoff_delta(chernoff, epsilon))
        off = math.log(max(best, 1e-280)) - log_delta
        if abs(off) < 3 or log_delta < _SMALLEST_LOG_DELTA:
            break
        # below what was left out anyway nothing is known, but that there is less
        log_delta += off if profile.added < 0.1 * found else min(off, -8.0)
    return best


def rare_epsilon(parts: PairParts, delta: float, *, coarseness: float = 1.0) -> float:
    """Upper bound on the smallest ε ≥ 0 at this δ, as :func:`rare_delta` is one on δ."""
    best = largest_sum(parts)
    target = first_epsilon(parts, delta)
    for _ in range(_ATTEMPTS):
        bounds = _profile(parts, LevelSketch(parts, target, math.log(delta), coarseness))
        if bounds is None:
            return min(best, grid_epsilon(parts, delta))
        profile, chernoff = bounds
        found = profile_epsilon(profile, delta)
        best = min(best, chernoff_epsilon(chernoff, delta))
        if found is None:
            target *= 4
            continue
        best = min(best, found)
        if best <= _LEAST_EPSILON or 0.5 * target <= found <= 1.25 * target:
            break
        target = max(found, _LEAST_EPSILON)
    return best


def rarely_exceeds(parts: PairParts, *, epsilon: float, delta: float) -> bool:
    """Whether δ at this ε is at most this one already by a Chernoff bound on a sparse grid.

    That is how the direction that is hardly ever the worse one is usually done with.
    """
    if epsilon >= largest_sum(parts) or delta >= 1:
        return True
    if epsilon <= 0:
        return False
    loss, weight = loss_nodes(parts, delta)
    orders = np.geomspace(1 / epsilon, 100 * math.log(1 / delta) / epsilon, ORDERS)
    exponent = np.minimum(np.multiply.outer(orders, loss), LARGEST_EXPONENT)
    bounds = np.expm1(exponent) @ weight - orders * epsilon
    enough = np.flatnonzero(bounds <= math.log(delta))
    if enough.size == 0:
        return False
    order = float(orders[min(enough[0] + 1, orders.size - 1)])
    step = max(0.5 / (order**2 * float(weight @ np.abs(loss))), epsilon / MOST_POINTS)
    lowest, top = -min(14 / order, MOST_POINTS * step), epsilon + FAR + _drift(parts)
    steps = [
        (level_of(pair, step, inside=None, bound=math.inf, lowest=lowest, top=top)[0], count)
        for pair, count in parts
    ]
    infinity, slop = beyond_grid(steps)
    log_moment = tilt_steps(steps, step, order)[0]
    return chernoff_delta((order, log_moment, infinity, slop), epsilon) <= delta


def _drift(parts: PairParts) -> float:
    """The sum of all losses of records that are not drawn, at most."""
    return sum(-count * math.log1p(-pair.rate) for pair, count in parts)


def _range_of_sum(
    played: GridSteps, step: float, sketch: LevelSketch, tilt: float
) -> tuple[float, float]:
    """A range that the sum leaves with probability e^log_tail at most on each side (Chernoff).

    It is wide enough, too, for little of the tilted law to wrap around.
    """
    sparse = [(*_sparser(loss, step), count) for loss, count in played]
    loss = np.concatenate([loss for loss, _, _ in sparse])
    weight = np.concatenate([count * mass for _, mass, count in sparse])
    here = tilt_steps(played, step, tilt)[0]
    tilted = weight * np.exp(np.minimum(tilt * loss, LARGEST_EXPONENT))

    def bound(sign: float, weight: FloatArray, log_tail: float, base: float, log: float) -> float:
        order = sign * _chernoff_order(sign * loss, weight, log_tail)
        return (tilt_steps(played, step, base + order)[0] - log - log_tail) / order

    high, low = (bound(sign, weight, sketch.log_tail, 0.0, 0.0) for sign in (1.0, -1.0))
    # what has wrapped around from above grows when the tilt is taken back
    log_room = sketch.log_room - (tilt - sketch.tilts[-1]) * (high - low)
    up, down = (bound(sign, tilted, log_room, tilt, here) for sign in (1.0, -1.0))
    most = MOST_POINTS * step
    return min(low, max(down, low - most)), max(high, min(up, high + most))


def _sparser(loss: GridLoss, step: float) -> tuple[FloatArray, FloatArray]:
    """The same masses on at most about ``_MOST_NODES`` points."""
    block = -(-loss.mass.size // _MOST_NODES)
    starts = np.arange(0, loss.mass.size, block)
    middle = np.minimum(starts + block // 2, loss.mass.size - 1)
    return step * (loss.first + middle.astype(np.float64)), np.add.reduceat(loss.mass, starts)


def _chernoff_order(loss: FloatArray, weight: FloatArray, log_tail: float) -> float:
    """The order of the closest bound that a sum of rare losses exceeds with this probability."""
    deviation = math.sqrt(float(weight @ loss**2)) + 1e-12
    largest = float(np.abs(loss).max()) + 1e-12
    orders = np.geomspace(
        min(0.02 / deviation, 0.1 / largest),
        min(max(20 / deviation, 40 / largest), LARGEST_EXPONENT / largest),
        ORDERS,
    )
    moments = np.expm1(np.multiply.outer(orders, loss)) @ weight
    return float(orders[np.argmin((moments - log_tail) / orders)])


# The law of a sum: the number of its first point on a grid, tilted probabilities of the points, and
# the largest error of one.
_Law = tuple[int, FloatArray, float]


def _coarser(
    law: _Law, old_step: float, step: float, *, tilt: float, change: float
) -> tuple[_Law, float]:
    """The same on a sparser grid, each sum going to its two neighbours, under another tilt.

    Args:
        law: on the old grid.
        old_step: its spacing.
        step: the new spacing, a multiple of the old one.
        tilt: the new order of the tilt.
        change: the new order less the old one.

    Returns:
        The new law, and the logarithm of what it was divided by.
    """
    first, masses, error = law
    ratio = round(step / old_step)
    index = first + np.arange(masses.size)
    below = index // ratio
    over = (index - ratio * below) * old_step
    share = np.expm1(-over) / math.expm1(-step)
    exponent = change * old_step * index
    peak = float(exponent.max())
    mass = (np.maximum(masses, 0.0) + error) * np.exp(exponent - peak - tilt * over)
    first = int(below[0])
    size = int(below[-1]) - first + 2
    coarse = np.bincount(below - first, mass * (1 - share), size)
    coarse += np.bincount(below - first + 1, mass * share * math.exp(tilt * step), size)
    total = float(coarse.sum())
    # relative errors of the exponents above, with room to spare
    rounding = 8 * _UNIT * (16 + abs(peak) + tilt * step + float(np.abs(exponent).max()))
    return (first, coarse / total, 0.0), peak + math.log(total) + rounding


def _profile(parts: PairParts, sketch: LevelSketch) -> tuple[Profile, Chernoff] | None:
    """Bounds on δ(ε), level after level from the lowest; None where that takes too many points."""
    inside: list[Interval | None] = [None for _ in parts]
    law: _Law = 0, np.ones(1), 0.0
    log_moment = infinity = over = slop = 0.0
    for position, step in enumerate(sketch.steps):
        bound = sketch.bounds[position] if position < len(sketch.bounds) else math.inf
        lowest = -min(14 / sketch.tilts[-1], sketch.epsilon + FAR, MOST_POINTS * step)
        levels = [
            level_of(pair, step, inside=within, bound=bound, lowest=lowest, top=sketch.top)
            for (pair, _), within in zip(parts, inside, strict=True)
        ]
        inside = [outputs for _, outputs in levels]
        played = [(loss, n) for (loss, _), (_, n) in zip(levels, parts, strict=True)]
        tilt = sketch.tilts[position]
        if position > 0:
            change = tilt - sketch.tilts[position - 1]
            law, added = _coarser(law, sketch.steps[position - 1], step, tilt=tilt, change=change)
            log_moment += added
        added, tilted = tilt_steps(played, step, tilt)
        low, high = _range_of_sum(played, step, sketch, tilt)
        first = law[0] + math.floor(low / step) - 1
        length = law[1].size + math.ceil((high - low) / step) + 4
        if length > _MOST_SUMS:
            return None
        law = _plus(law, played, tilted, first, fast_length(length))
        lost, understated = beyond_grid(played)
        log_moment, infinity, slop = log_moment + added, infinity + lost, slop + understated
        # The sum leaves its range upwards, or downwards, where it is not seen by the levels above.
        over += 2 * math.exp(sketch.log_tail)
    first, masses, error = law
    loss = step * (first + np.arange(masses.size, dtype=np.float64))
    rough = (tilt, log_moment, infinity, slop)
    profile = profile_of_law(masses, error, rough, loss=loss, step=step, over=over)
    return profile, (tilt, log_moment, profile.added, slop)


def _plus(
    law: _Law, played: GridSteps, tilted: Sequence[FloatArray], first: int, length: int
) -> _Law:
    """The sum so far and all plays of a level, on ``length`` points from ``first``."""
    modes = [int(np.argmax(mass)) for mass in tilted]
    shares = [float(mass[mode]) for mass, mode in zip(tilted, modes, strict=True)]
    log_none = sum(n * math.log(share) for (_, n), share in zip(played, shares, strict=True))
    if min(shares) > _SPARSE and log_none > -_MOST_EVENTS:
        values, off, origin, none = _transformed_events(played, tilted, modes, log_none, length)
    else:
        values, off, origin, none = _transformed_sum(played, tilted, length)
    before, error = _transform(law[1], 0, length)
    values_error = off * (np.abs(before) + error) + np.abs(values) * error
    total = np.fft.irfft(values * before, length)
    total_error = 2 * float(values_error.mean())
    total_error += _FFT_ERROR * math.log2(length) * math.sqrt(float(total @ total))
    start = law[0] + origin - first
    total = np.roll(total, start % length)
    if none > 0:
        total[(start + np.arange(law[1].size)) % length] += none * law[1]
    return first, total, total_error + 4 * _UNIT * float(total.max())


# The transformed law of all plays of a level, less that of one sum; the error of each value; that
# sum; and its probability.
_Plays = tuple[ComplexArray, FloatArray, int, float]


def _transform(mass: FloatArray, centre: int, length: int) -> tuple[ComplexArray, float]:
    """The transform of masses at -centre, 1 - centre, ..., and the largest error of an entry."""
    folded = np.bincount((np.arange(mass.size) - centre) % length, mass, length)
    # an entry is a sum of all masses, in layers of additions and rotations
    return np.fft.rfft(folded), _FFT_ERROR * math.log2(length) * float(folded.sum())


def _transformed_sum(played: GridSteps, tilted: Sequence[FloatArray], length: int) -> _Plays:
    log_size, angle, error = (np.zeros(length // 2 + 1) for _ in range(3))
    origin = 0
    for (loss, count), mass in zip(played, tilted, strict=True):
        centre = round(float(mass @ np.arange(mass.size)))
        spectrum, off = _transform(mass, centre, length)
        size = np.abs(spectrum) + off
        log_size += count * np.log(size)
        angle += count * np.angle(spectrum)
        error += 2 * count * (off / size + 16 * _UNIT)
        origin += count * (loss.first + centre)
    size = np.exp(np.minimum(log_size, 0.0))
    return size * np.exp(1j * angle), error * size, origin, 0.0


def _transformed_events(
    played: GridSteps,
    tilted: Sequence[FloatArray],
    modes: Sequence[int],
    log_none: float,
    length: int,
) -> _Plays:
    """(1 + odds)^T - 1 times the probability of no event, without cancellation."""
    log_size, angle, error = (np.zeros(length // 2 + 1) for _ in range(3))
    origin = 0
    for (loss, count), mass, mode in zip(played, tilted, modes, strict=True):
        odds = mass / mass[mode]
        odds[mode] = 0.0  # what is left adds up to at most 1/3
        spectrum, off = _transform(odds, mode, length)
        real, imaginary = spectrum.real, spectrum.imag
        log_size += 0.5 * count * np.log1p(real * (2 + real) + imaginary**2)
        angle += count * np.arctan2(imaginary, 1 + real)
        error += 2 * count * (off + 16 * _UNIT * np.abs(spectrum))
        origin += count * (loss.first + mode)
    none = math.exp(log_none)
    size = none * np.exp(log_size)
    values = np.empty(angle.size, dtype=np.complex128)
    values.real = none * (np.expm1(log_size) * np.cos(angle) - 2 * np.sin(angle / 2) ** 2)
    values.imag = size * np.sin(angle)
    distance = np.hypot(log_size, angle)
    error = size * (error + 8 * _UNIT * distance)
    error += 16 * _UNIT * (size + none) * np.minimum(distance, 2.0)
    return values, error, origin, none


# The losses of one level. Given that a loss is not larger, those of a level and "smaller" are a
# pair of distributions like any other. Levels are cut where the output is: the outputs of a level
# and of those below it are an interval.


def level_of(
    pair: LossPair, step: float, *, inside: Interval | None, bound: float, lowest: float, top: float
) -> tuple[GridLoss, Interval]:
    """The losses of one size on the grid {i·step}, given that there is no larger one.

    A step whose output lies in ``inside`` counts as a loss of 0, and the other losses of the
    level as L - ν, ν the loss of "the output lies in ``inside``" (see above).

    Args:
        pair: the step.
        step: grid spacing h.
        inside: outputs of the levels below; None for the lowest level.
        bound: losses up to about this size, or infinity for the top level.
        lowest: losses below this are raised to about this.
        top: losses above this are declared infinite.

    Returns:
        The losses, and the outputs of this level and those below it.

    Example:
        >>> pair = LossPair(kind="remove", shift=2.0, rate=1e-4)
        >>> small, inside = level_of(pair, 1e-4, inside=None, bound=0.1, lowest=-1.0, top=9.0)
        >>> large, _ = level_of(pair, 1e-2, inside=inside, bound=math.inf, lowest=-1.0, top=9.0)
        >>> round(float(small.mass.sum()), 12), bool(large.mass.max() > 0.999)
        (1.0, True)
    """
    outer = -math.inf, math.inf
    if bound < math.inf:
        low, high = output_at(pair, np.array([-bound, bound])).tolist()
        outer = low, high
    if inside is not None:
        outer = min(outer[0], inside[0]), max(outer[1], inside[1])
    if pair.kind == "fixed":
        pieces = [(pair.shift / 2 if inside is None else inside[1], outer[1])]
    elif inside is None:
        pieces = [outer]
    else:
        pieces = [(outer[0], inside[0]), (inside[1], outer[1])]
    p, q = (0.0, 0.0) if inside is None else _outside(pair, inside)
    origin = math.log1p(-p) - math.log1p(-q)  # the loss of "the output lies inside"
    parts = [
        _piece(pair, piece, step, origin, lowest, top) for piece in pieces if piece[0] < piece[1]
    ]
    grid = _joined(parts, lowest=math.floor(lowest / step))
    middle = -grid.first
    if inside is not None:
        grid.mass[middle] += 1 - p
    elif pair.kind == "fixed":
        grid.mass[middle] += (1 - pair.rate) * (2 * float(ndtr(pair.shift / 2)) - 1)
    share = 1 - _outside(pair, outer)[0]
    grid.mass[:] *= (1 + 8 * _UNIT) / share
    return grid._replace(infinity=grid.infinity / share), outer


def _piece(
    pair: LossPair, piece: Interval, step: float, origin: float, lowest: float, top: float
) -> GridLoss:
    """The losses of the outputs in an interval, less ``origin``, on the grid."""
    left, right = piece
    least, most = loss_at(pair, np.array(piece)).tolist()
    high = min(most, top) - origin
    low = min(max(least, lowest) - origin, high - step)
    first, last = math.floor(low / step), math.ceil(high / step)
    if pair.kind == "fixed":
        first = max(first, 0)
    losses = origin + step * np.arange(first, last + 1, dtype=np.float64)
    x = np.clip(output_at(pair, losses), left, right)
    if left > -math.inf:
        x[0] = left
    if right < math.inf:
        x[-1] = right
    mass, below, above, q_above = masses_between(pair, losses, first, step, x)
    infinity = above if right == math.inf else 0.0
    slop = (128 + 4 * pair.shift**2) * _UNIT * float(np.abs(losses[[0, -1]]).max())
    if pair.kind == "fixed":
        first = -last
        mass[0] += q_above if right == math.inf else 0.0
    elif left == -math.inf:
        mass[0] += below
    return GridLoss(first=first, mass=mass, infinity=infinity, slop=slop)


def _outside(pair: LossPair, interval: Interval) -> tuple[float, float]:
    """P- and Q-mass of the outputs beyond an interval (for ``fixed``, of its losses)."""
    (low, high), s = interval, pair.shift
    if pair.kind == "fixed":
        base, moved = float(ndtr(-high)), float(ndtr(s - high))
        both = (2 - pair.rate) * base + pair.rate * moved
        return both, both
    base = float(ndtr(low) + ndtr(-high))
    up = float(ndtr(low - s) + ndtr(s - high))
    down = float(ndtr(low + s) + ndtr(-s - high))
    p = base if pair.kind == "add" else (1 - pair.rate) * base + pair.rate * up
    q = base if pair.kind == "remove" else (1 - pair.rate) * base + pair.rate * down
    return p, q


def _joined(parts: list[GridLoss], *, lowest: int) -> GridLoss:
    """Disjoint parts of one loss on one grid, which holds 0; what is below ``lowest`` is raised."""
    first = min([part.first for part in parts] + [0])
    last = max([part.first + part.mass.size for part in parts] + [1])
    mass = np.zeros(last - first)
    for part in parts:
        mass[part.first - first : part.first - first + part.mass.size] += part.mass
    cut = max(min(lowest, 0) - first, 0)
    mass[cut] += mass[:cut].sum()
    return GridLoss(
        first=first + cut,
        mass=mass[cut:],
        infinity=sum(part.infinity for part in parts),
        slop=max((part.slop for part in parts), default=0.0),
    )

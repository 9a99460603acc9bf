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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.accounting.composition import Chernoff, GridSteps, Profile, profile_of_law
from dpcohort.accounting.grids import SMALLEST_TAIL, log_gap
from dpcohort.accounting.pairs import GridLoss, Interval, LossPair

__all__ = ["TINY_RATE", "RareLosses"]

#: Below this rate nearly all losses are so small that one grid does not serve them and the others.
TINY_RATE = 5e-4

ComplexArray = NDArray[np.complex128]

_UNIT = 2.0**-53
_FFT_ERROR = 8 * _UNIT  # relative error of a transform per doubling of its length
_ATTEMPTS = 6
_SMALLEST_LOG_DELTA = -50.0  # where a closer bound is not looked for
_NEGLIGIBLE = 1e-5  # what a cut tail may add to δ, relatively
_MOST_POINTS = 2**16  # of the top level
# The scale on which δ falls by e is the unit of the top spacing, and its square that of the
# variance which rounding may add to the sum. A variance v raises ln δ by v/2 in these units.
_TOP_SPACING = 0.25
_VARIANCE = 0.03
_LOWER_TILT = 0.5  # of a lower level, times the spread of its sum
_LARGEST_RATIO = 16  # between the spacings of two levels
_MOST_LEVELS = 8
_FAR = 10.0  # a loss this far above ε counts as infinite, for e^-10 of its δ
_ORDERS = 40
_LARGEST_EXPONENT = 300.0
_MOST_NODES = 400
_NODES_PER_DEVIATION = 20.0
# A level whose most likely loss has at least this probability and that has at most so many other
# losses in all steps is transformed without it.
_SPARSE = 0.75
_MOST_EVENTS = 500.0


class RareLosses:
    """Independent steps at tiny rates, given as (pair, number of steps); one direction.

    Args:
        parts: the distinct steps and how often each is taken.
        coarseness: factor on the variance that rounding may add; 1 is accurate.

    Example:
        >>> pair = LossPair(kind="remove", shift=1 / 0.45, rate=1e-5)
        >>> steps = RareLosses([(pair, 1000)])
        >>> epsilon = steps.epsilon(1e-5)
        >>> bool(0.9e-5 < steps.delta(epsilon) <= 1.1e-5)
        True
    """

    def __init__(self, parts: Sequence[tuple[LossPair, int]], *, coarseness: float = 1.0) -> None:
        self._parts = [(pair, count) for pair, count in parts if count > 0]
        self._coarseness = coarseness

    def delta(self, epsilon: float, *, expected: float = 1e-7) -> float:
        """Upper bound on δ at this ε, close where it is about as large as expected, or larger."""
        if not self._parts or epsilon >= self._largest_sum():
            return 0.0
        best, log_delta = 1.0, math.log(expected)
        for _ in range(_ATTEMPTS):
            sketch = _Sketch(
                self._parts, epsilon=epsilon, log_delta=log_delta, coarseness=self._coarseness
            )
            profile, chernoff = _profile(self._parts, sketch)
            found = profile.delta(epsilon)
            best = min(best, found, chernoff.delta(epsilon))
            off = math.log(max(best, 1e-280)) - log_delta
            if abs(off) < 3 or log_delta < _SMALLEST_LOG_DELTA:
                break
            # below what was left out anyway nothing is known, but that there is less
            log_delta += off if profile.added < 0.1 * found else min(off, -8.0)
        return best

    def epsilon(self, delta: float) -> float:
        """Upper bound on the smallest ε ≥ 0 at this δ."""
        if not self._parts:
            return 0.0
        best = self._largest_sum()
        target = _first_epsilon(self._parts, delta)
        for _ in range(_ATTEMPTS):
            sketch = _Sketch(
                self._parts, epsilon=target, log_delta=math.log(delta), coarseness=self._coarseness
            )
            profile, chernoff = _profile(self._parts, sketch)
            found = profile.epsilon(delta)
            best = min(best, chernoff.epsilon(delta))
            if found is None:
                target *= 4
                continue
            best = min(best, found)
            if best <= 1e-9 or 0.5 * target <= found <= 1.25 * target:
                break
            target = max(found, 1e-6)
        return best

    def keeps(self, *, epsilon: float, delta: float) -> bool:
        """Whether δ at this ε is at most this one already by a Chernoff bound on a sparse grid.

        That is how the direction that is hardly ever the worse one is usually done with.
        """
        if epsilon >= self._largest_sum():
            return True
        if epsilon <= 0:
            return False
        loss, weight = _nodes(self._parts, delta)
        orders = np.geomspace(1 / epsilon, 100 * math.log(1 / delta) / epsilon, _ORDERS)
        exponent = np.minimum(np.multiply.outer(orders, loss), _LARGEST_EXPONENT)
        bounds = np.expm1(exponent) @ weight - orders * epsilon
        enough = np.flatnonzero(bounds <= math.log(delta))
        if enough.size == 0:
            return False
        order = float(orders[min(enough[0] + 1, orders.size - 1)])
        step = max(0.5 / (order**2 * float(weight @ np.abs(loss))), epsilon / _MOST_POINTS)
        drift = sum(-count * math.log1p(-pair.rate) for pair, count in self._parts)
        losses = [
            pair.level(
                step,
                inside=None,
                bound=math.inf,
                lowest=-14 / order,
                top=epsilon + _FAR + drift,
            )[0]
            for pair, _ in self._parts
        ]
        steps = GridSteps(losses, [count for _, count in self._parts], step)
        log_delta = steps.tilt(order)[0] - order * (epsilon - steps.slop) + log_gap(order)
        return math.exp(min(log_delta, 0.0)) + steps.infinity <= delta

    def _largest_sum(self) -> float:
        """The sum of all losses if every one is as large as it can be."""
        if any(pair.kind != "add" for pair, _ in self._parts):
            return math.inf
        return sum(-n * math.log1p(-pair.rate) * (1 + 1e-14) for pair, n in self._parts)


class _Sketch:
    """Tilt, spacings, levels and windows for an expected answer. Nothing here enters a bound.

    Attributes:
        epsilon: about where the answer is.
        log_delta: about what δ is there.
        tilts: order of the exponential tilt at each level.
        top: losses above this count as infinite.
        steps: spacing of each level, the smallest first.
        bounds: bounds on |L| between the levels.
        log_tail: of what may be left out of the law of a sum.
        log_room: of what may be in the wrong place in a tilted law.
    """

    def __init__(
        self,
        parts: Sequence[tuple[LossPair, int]],
        *,
        epsilon: float,
        log_delta: float,
        coarseness: float,
    ) -> None:
        loss, weight = _nodes(parts, math.exp(log_delta))
        drift = sum(-count * math.log1p(-pair.rate) for pair, count in parts)
        top = epsilon + _FAR + drift
        self._loss = np.maximum(loss[loss <= top], -(epsilon + _FAR))
        self._weight = weight[loss <= top]
        self._size = np.abs(self._loss)
        self.epsilon = epsilon
        self.log_delta = min(log_delta, 0.0)
        self.top = min(top, 1.1 * float(self._loss.max()) + 1e-9)
        self._orders = np.geomspace(0.01 / (1 + float(self._size.max())), 1e4 / epsilon, _ORDERS)

        alone = float(self._weight @ -np.expm1(np.minimum(epsilon - self._loss, 0.0)))
        # How steeply δ falls: as that of a loss that comes alone, or as that of a sum of many.
        many = self._log_moment(self._size <= epsilon) - self._orders * epsilon
        saddle = self._best_order(many)
        above = float(self._weight[self._loss > epsilon].sum())
        steepness = min(saddle, above / alone - 1 if alone > 0 else math.inf)
        unit = 1 / (1 + steepness)
        top_step = max(_TOP_SPACING * unit, self.top / _MOST_POINTS)
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
        bound = float(exponent[self._orders == tilt][0])
        self.tilts = [*(max(tilt, self._lower_tilt(bound)) for bound in self.bounds), tilt]
        self.log_tail = self.log_delta + math.log(_NEGLIGIBLE)
        self.log_room = min(self.log_delta - bound, 0.0) + math.log(_NEGLIGIBLE)

    def _best_order(self, exponent: FloatArray) -> float:
        """The order with the smallest bound, or the first with one that is small enough."""
        enough = np.flatnonzero(exponent < self.log_delta - _FAR)
        return float(self._orders[enough[0] if enough.size else np.argmin(exponent)])

    def _lower_tilt(self, bound: float) -> float:
        """Rounding errors of a lower level are the same all over its range; a tilt that does not
        distort its law makes them fall off towards the large sums."""
        spread = math.sqrt(float(self._weight @ np.where(self._size <= bound, self._size, 0) ** 2))
        return _LOWER_TILT / max(spread, bound)

    def _log_moment(self, chosen: BoolArray) -> FloatArray:
        """ln E e^{tS} at every order t, the losses that are not chosen taken as 0."""
        exponent = np.multiply.outer(self._orders, self._loss[chosen])
        moment = np.expm1(np.minimum(exponent, _LARGEST_EXPONENT)) @ self._weight[chosen]
        result: FloatArray = np.where(
            exponent.max(axis=1, initial=0.0) < _LARGEST_EXPONENT, moment, np.inf
        )
        return result

    def _levels(self, step: float, variance: float) -> tuple[list[float], list[float]]:
        order = np.argsort(self._size)
        size, weight = self._size[order], self._weight[order]
        steps, bounds = [step], list[float]()
        while len(steps) < _MOST_LEVELS and _gained(size, weight, step) > variance:
            above = np.cumsum(weight[::-1])[::-1] * step**2 / 6
            bound = max(float(size[min(np.sum(above > variance / 4), size.size - 1)]), step)
            below = size <= bound
            size, weight = size[below], weight[below]
            least = 10 * math.sqrt(float(weight @ size**2)) / _MOST_POINTS
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


class _Range(NamedTuple):
    low: float
    high: float


def _range_of_sum(played: GridSteps, sketch: _Sketch, tilt: float) -> _Range:
    """A range that the sum leaves with probability e^log_tail at most on each side (Chernoff).

    It is wide enough, too, for little of the tilted law to wrap around.
    """
    parts = [_sparser(loss, played.step) for loss in played.losses]
    loss = np.concatenate([loss for loss, _ in parts])
    weight = np.concatenate(
        [count * mass for (_, mass), count in zip(parts, played.counts, strict=True)]
    )
    here = played.tilt(tilt)[0]
    tilted = weight * np.exp(np.minimum(tilt * loss, _LARGEST_EXPONENT))

    def bound(sign: float, weight: FloatArray, log_tail: float, base: float, log: float) -> float:
        order = sign * _chernoff_order(sign * loss, weight, log_tail)
        return (played.tilt(base + order)[0] - log - log_tail) / order

    high, low = (bound(sign, weight, sketch.log_tail, 0.0, 0.0) for sign in (1.0, -1.0))
    # what has wrapped around from above grows when the tilt is taken back
    log_room = sketch.log_room - (tilt - sketch.tilts[-1]) * (high - low)
    up, down = (bound(sign, tilted, log_room, tilt, here) for sign in (1.0, -1.0))
    most = _MOST_POINTS * played.step
    return _Range(min(low, max(down, low - most)), max(high, min(up, high + most)))


def _sparser(loss: GridLoss, step: float) -> tuple[FloatArray, FloatArray]:
    """The same masses on at most about ``_MOST_NODES`` points."""
    block = -(-loss.mass.size // _MOST_NODES)
    starts = np.arange(0, loss.mass.size, block)
    middle = np.minimum(starts + block // 2, loss.mass.size - 1)
    return step * (loss.first + middle), np.add.reduceat(loss.mass, starts)


def _chernoff_order(loss: FloatArray, weight: FloatArray, log_tail: float) -> float:
    """The order of the closest bound that a sum of rare losses exceeds with this probability."""
    deviation = math.sqrt(float(weight @ loss**2)) + 1e-12
    largest = float(np.abs(loss).max()) + 1e-12
    orders = np.geomspace(
        min(0.02 / deviation, 0.1 / largest),
        min(max(20 / deviation, 40 / largest), _LARGEST_EXPONENT / largest),
        _ORDERS,
    )
    moments = np.expm1(np.multiply.outer(orders, loss)) @ weight
    return float(orders[np.argmin((moments - log_tail) / orders)])


def _nodes(parts: Sequence[tuple[LossPair, int]], delta: float) -> tuple[FloatArray, FloatArray]:
    """Losses, and the number of steps that have about that loss."""
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


def _first_epsilon(parts: Sequence[tuple[LossPair, int]], delta: float) -> float:
    """About the ε at which losses that come alone, or the limit of many, give this δ."""
    loss, weight = _nodes(parts, delta)
    grid = np.geomspace(1e-4, 60.0, 60)
    alone = -np.expm1(np.minimum(grid[:, None] - loss, 0.0)) @ weight
    reached = np.flatnonzero(alone <= delta)
    rare = float(grid[reached[0]]) if reached.size else 60.0
    small = np.abs(loss) <= rare
    deviation = math.sqrt(float(weight[small] @ loss[small] ** 2))
    return min(max(rare, deviation * math.sqrt(2 * math.log(1 / delta))), 60.0)


class _Sum(NamedTuple):
    """Tilted probabilities of the sums (first + j)·step, and the largest error of one."""

    first: int
    step: float
    law: FloatArray
    error: float

    def coarser(self, step: float, *, tilt: float, change: float) -> tuple[_Sum, float]:
        """The same on a sparser grid, each sum going to its two neighbours, under another tilt.

        Args:
            step: the new spacing, a multiple of the old one.
            tilt: the new order of the tilt.
            change: the new order less the old one.

        Returns:
            The new law, and the logarithm of what it was divided by.
        """
        ratio = round(step / self.step)
        index = self.first + np.arange(self.law.size)
        below = index // ratio
        over = (index - ratio * below) * self.step
        share = np.expm1(-over) / math.expm1(-step)
        exponent = change * self.step * index
        peak = float(exponent.max())
        mass = (np.maximum(self.law, 0.0) + self.error) * np.exp(exponent - peak - tilt * over)
        first = int(below[0])
        size = int(below[-1]) - first + 2
        law = np.bincount(below - first, mass * (1 - share), size)
        law += np.bincount(below - first + 1, mass * share * math.exp(tilt * step), size)
        total = float(law.sum())
        # relative errors of the exponents above, with room to spare
        rounding = 8 * _UNIT * (16 + abs(peak) + tilt * step + float(np.abs(exponent).max()))
        return _Sum(first, step, law / total, 0.0), peak + math.log(total) + rounding


def _profile(
    parts: Sequence[tuple[LossPair, int]], sketch: _Sketch
) -> tuple[Profile, Chernoff]:
    """Bounds on δ(ε), level after level from the lowest."""
    counts = [count for _, count in parts]
    inside: list[Interval | None] = [None for _ in parts]
    total = _Sum(0, sketch.steps[0], np.ones(1), 0.0)
    log_moment = infinity = over = slop = 0.0
    for position, step in enumerate(sketch.steps):
        bound = sketch.bounds[position] if position < len(sketch.bounds) else math.inf
        levels = [
            pair.level(
                step,
                inside=within,
                bound=bound,
                lowest=-min(14 / sketch.tilts[-1], sketch.epsilon + _FAR),
                top=sketch.top,
            )
            for (pair, _), within in zip(parts, inside, strict=True)
        ]
        inside = [outputs for _, outputs in levels]
        played = GridSteps([loss for loss, _ in levels], counts, step)
        tilt = sketch.tilts[position]
        if position > 0:
            change = tilt - sketch.tilts[position - 1]
            total, added = total.coarser(step, tilt=tilt, change=change)
            log_moment += added
        added, tilted = played.tilt(tilt)
        reach = _range_of_sum(played, sketch, tilt)
        first = total.first + math.floor(reach.low / step) - 1
        length = total.law.size + math.ceil((reach.high - reach.low) / step) + 4
        total = _plus(total, played, tilted, first, next_fast_len(length, real=True))
        log_moment += added
        infinity += played.infinity
        # The sum leaves its range upwards, or downwards, where it is not seen by the levels above.
        over += 2 * math.exp(sketch.log_tail)
        slop += played.slop
    profile = profile_of_law(
        total.law,
        total.error,
        loss=total.step * (total.first + np.arange(total.law.size)),
        step=total.step,
        tilt=sketch.tilts[-1],
        log_moment=log_moment,
        over=over,
        infinity=infinity,
        slop=slop,
    )
    return profile, Chernoff(sketch.tilts[-1], log_moment, profile.added, slop)


def _plus(
    total: _Sum, played: GridSteps, tilted: Sequence[FloatArray], first: int, length: int
) -> _Sum:
    """The sum so far and all plays of a level, on ``length`` points from ``first``."""
    modes = [int(np.argmax(mass)) for mass in tilted]
    shares = [float(mass[mode]) for mass, mode in zip(tilted, modes, strict=True)]
    log_none = sum(n * math.log(share) for n, share in zip(played.counts, shares, strict=True))
    if min(shares) > _SPARSE and log_none > -_MOST_EVENTS:
        plays = _transformed_events(played, tilted, modes, log_none, length)
    else:
        plays = _transformed_sum(played, tilted, length)
    before, error = _transform(total.law, 0, length)
    plays_error = plays.error * (np.abs(before) + error) + np.abs(plays.values) * error
    law = irfft(plays.values * before, length)
    law_error = 2 * float(plays_error.mean())
    law_error += _FFT_ERROR * math.log2(length) * math.sqrt(float(law @ law))
    start = total.first + plays.origin - first
    law = np.roll(law, start % length)
    if plays.none > 0:
        law[(start + np.arange(total.law.size)) % length] += plays.none * total.law
    return _Sum(first, total.step, law, law_error + 4 * _UNIT * float(law.max()))


class _Plays(NamedTuple):
    """The transformed law of all plays of a level, less that of ``origin``, which has ``none``."""

    values: ComplexArray
    error: FloatArray
    origin: int
    none: float


def _transform(mass: FloatArray, centre: int, length: int) -> tuple[ComplexArray, float]:
    """The transform of masses at -centre, 1 - centre, ..., and the largest error of an entry."""
    folded = np.bincount((np.arange(mass.size) - centre) % length, mass, length)
    # an entry is a sum of all masses, in layers of additions and rotations
    return rfft(folded), _FFT_ERROR * math.log2(length) * float(folded.sum())


def _transformed_sum(played: GridSteps, tilted: Sequence[FloatArray], length: int) -> _Plays:
    log_size, angle, error = (np.zeros(length // 2 + 1) for _ in range(3))
    origin = 0
    for loss, mass, count in zip(played.losses, tilted, played.counts, strict=True):
        centre = round(float(mass @ np.arange(mass.size)))
        spectrum, off = _transform(mass, centre, length)
        size = np.abs(spectrum) + off
        log_size += count * np.log(size)
        angle += count * np.angle(spectrum)
        error += 2 * count * (off / size + 16 * _UNIT)
        origin += count * (loss.first + centre)
    size = np.exp(np.minimum(log_size, 0.0))
    return _Plays(size * np.exp(1j * angle), error * size, origin, 0.0)


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
    for loss, mass, mode, count in zip(played.losses, tilted, modes, played.counts, strict=True):
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
    return _Plays(values, error, origin, none)

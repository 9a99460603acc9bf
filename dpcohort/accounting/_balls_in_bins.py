# SPDX-License-Identifier: Apache-2.0
"""Balls-in-bins sampling: each record is in at most one of a draw's batches.

At the start of a draw every record is thrown into one of b = ceil(n/B) bins, independently and
uniformly; local step s of the draw uses bin s. The batches of one draw are disjoint, and a draw of
b steps uses every record exactly once, like an epoch of shuffled data, while each batch is as
random as one of Poisson sampling at rate 1/b (Chua et al. 2024, "Balls-and-Bins Sampling for
DP-SGD"; "random allocation" of Feldman and Shenfeld 2025). Sums are divided by the public B.

**Privacy.** The T steps of a draw share the throw, so the draw is *one* mechanism; draws are thrown
anew and compose independently. Under zero-out neighbours no adaptive choice of gradients tells the
data sets better apart than (Chua et al.: the record adds one and the same clipped direction)::

    Q = N(0, 1)^T,      P = (b-T)/b Q + 1/b Σ_t N(s e_t, 1),      s = 1/z.

With one step this is Poisson sampling at rate 1/b. The likelihood ratio under Q is

    W = P/Q = (b-T)/b + 1/b Σ_{t ≤ T} X_t,      ln X_t ~ N(-s²/2, s²), independent,

and δ(ε) of the draw is E[(W - e^ε)₊] in one order of the data sets and E[(1 - e^ε W)₊] in the
other. Both are convex in W. So W may be replaced by anything that is larger in convex order, and
the law of W is computed on a grid of ln W by splitting each mass over its two neighbours such that
its mean is kept: that enlarges it in convex order, sums of independent summands keep the order, and
so do products with what is independent, which is composition over draws.

**The law of Σ X_t** is built by doubling, with a grid that becomes finer as the sum narrows. On a
grid of logarithms e^{ih} + e^{jh} = e^{max(i,j)h} (1 + e^{-|i-j|h}): how a sum lies between two
points depends on i - j alone, so all pairs with one difference are added in one sweep. Every term
is positive, so nothing cancels. Mass in the lower tail is split over 0 and the lowest point; from
the upper tail mean goes to +∞, where it has no probability under Q and is an infinite loss under P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from dpcohort._validate import FloatArray, IntArray, whole_number
from dpcohort.accounting._composition import GridLoss, Loss, LossPair
from dpcohort.accounting._sampler import Batches, Neighbours, Sampler, WordStream
from dpcohort.errors import InputError

_UNIT = 2.0**-53
#: Share of the variance of ΣX that all roundings to a grid may add.
_TOLERANCE = 3e-4
#: Tails are rounded down to a power of ten whose exponent is a multiple of this, and not below
#: the smallest one; what they hold is counted.
_TAIL_DECADES, _SMALLEST_DECADE = 4, -40


@dataclass(frozen=True)
class BallsInBins(Sampler):
    """Each record is in at most one batch of a draw: that of its bin.

    Example:
        >>> sampler = BallsInBins().over(4)
        >>> float(sampler.rates(np.array([60]), np.array([8]))[0]), sampler.uses(12)
        (0.125, 3)
    """

    name = "balls-in-bins"
    natural_neighbours = "zero-out"
    unproved = {  # noqa: RUF012
        "replace-one": "No dominating pair is proved for replacing a record that is thrown into "
        "bins. Use sampler = 'poisson' with neighbours = 'replace-one'."
    }
    is_joint = True

    def over(self, local_steps: int) -> Sampler:
        """Draws of so many local steps, which are one use."""
        return BallsInBins(local_steps)

    def rates(self, sizes: IntArray, batch_sizes: IntArray) -> FloatArray:
        """1/b with b = ceil(n/B): a bin holds B records on average, or fewer."""
        bins = -(-np.asarray(sizes, dtype=np.int64) // batch_sizes)
        return np.asarray(1.0 / bins, dtype=np.float64)

    def batch_size(self, rate: float, size: int) -> int | None:
        """Several B have the same number of bins, so a rate does not tell which."""
        raise InputError.because(
            "sampler = 'balls-in-bins' is not served by guards: a guard computes the public batch "
            "size from the sampling rate, and here several batch sizes have one rate. Use sampler "
            "= 'poisson' in a federation."
        )

    def losses(
        self, noise_multiplier: float, sampling_rate: float, neighbours: Neighbours
    ) -> tuple[Loss, ...]:
        """Both orders of one draw; with one local step those of Poisson sampling."""
        bins, shift = self._bins(sampling_rate), 1 / noise_multiplier
        if self.local_steps == 1:
            return (
                LossPair(kind="remove", shift=shift, rate=sampling_rate),
                LossPair(kind="add", shift=shift, rate=sampling_rate),
            )
        return (
            DrawLoss("remove", shift, bins, self.local_steps),
            DrawLoss("add", shift, bins, self.local_steps),
        )

    def _bins(self, rate: float) -> int:
        """The bins of a rate 1/b; the same for accounting and drawing.

        Raises:
            InputError: it is none, or a draw has more steps than bins.
        """
        bins = round(1 / rate)
        if rate != 1.0 / bins:
            raise InputError(
                "sampling_rate",
                given=rate,
                allowed="1/b for a whole number b of bins when sampler = 'balls-in-bins'",
            )
        if self.local_steps > bins:
            raise InputError(
                "local_steps",
                given=self.local_steps,
                allowed=f"at most the {bins} bins of a client when sampler = 'balls-in-bins': each "
                "local step uses a bin of its own",
                next_step="Lower training.local_steps or the batch size; a client has "
                "ceil(size / batch size) bins.",
            )
        return bins

    def draw(self, stream: WordStream, *, size: int, rate: float, batch_size: int) -> Batches:
        """All records are thrown once; each step has the records of its bin."""
        bins = self._bins(rate)
        limit = np.uint64(2**64 - 2**64 % bins - 1)  # words above it would favour the first bins
        words = stream.words(size, 0)
        while stream.is_fresh and (words > limit).any():
            words = stream.words(size, 0)
        thrown = words % np.uint64(bins)

        def batch(step: int) -> IntArray:
            whole_number("step", step, at_least=0, at_most=self.local_steps - 1)
            return np.flatnonzero(thrown == np.uint64(step)).astype(np.int64)

        return batch


class DrawLoss(NamedTuple):
    """The privacy loss of one draw of several steps, in one order of the neighbours.

    Attributes:
        kind: ``remove``, ln W under P; or ``add``, -ln W under Q.
        shift: s, of the Gaussians in units of the noise.
        bins: b.
        steps: T, from 2 to b.

    Example:
        >>> loss = DrawLoss("remove", 0.5, bins=10, steps=10)
        >>> grid = loss.on_grid(0.01, tail=1e-9, lowest=-1.0)
        >>> bool(abs(grid.mass.sum() + grid.infinity - 1) < 1e-9)
        True
    """

    kind: Literal["remove", "add"]
    shift: float
    bins: int
    steps: int

    @property
    def is_tiny(self) -> bool:
        """One grid serves its losses: a record that is thrown is seldom in no step."""
        return False

    @property
    def distance(self) -> float:
        """Total variation distance of P and Q, at most T/b times that of two Gaussians."""
        apart = math.erf(self.shift / 2 / math.sqrt(2)) * (1 + 1e-14)
        return min(1.0, self.steps / self.bins * apart)

    @property
    def largest(self) -> float:
        """W is at least (b-T)/b."""
        if self.kind != "add" or self.steps == self.bins:
            return math.inf
        return -math.log1p(-self.steps / self.bins) * (1 + 1e-14)

    def sketched(self, tail: float) -> tuple[FloatArray, FloatArray]:
        """Losses and their approximate probabilities, for choosing a grid (never for a bound)."""
        log_ratio, mass = self._points(tail)[:2]
        if self.kind == "remove":
            return log_ratio, _normalised(mass * np.exp(log_ratio))
        return -log_ratio[::-1], _normalised(mass[::-1])

    def on_grid(self, step: float, *, tail: float, lowest: float) -> GridLoss:
        """The loss on the grid {i·step}, never understated."""
        log_ratio, mass, zero, infinity = self._points(tail)
        below = np.floor(log_ratio / step)
        up = np.expm1(log_ratio - below * step) / math.expm1(step)
        index = below.astype(np.int64) - int(below[0])
        ratio_mass = np.bincount(index, mass * (1 - up), index[-1] + 2)
        ratio_mass += np.bincount(index + 1, mass * up, index[-1] + 2)
        points = int(below[0]) + np.arange(ratio_mass.size)
        if self.kind == "remove":
            first, law = int(points[0]), ratio_mass * np.exp(step * points)
        else:
            first, law, infinity = -int(points[-1]), ratio_mass[::-1].copy(), zero
        cut = min(max(math.floor(lowest / step) - first, 0), law.size - 2)
        law[cut] += law[:cut].sum()
        most = step * max(abs(first), abs(first + law.size))
        rounding = _UNIT * (64 + law.size) * self.steps.bit_length()
        return GridLoss(
            first=first + cut,
            mass=law[cut:] * (1 + rounding),
            infinity=infinity,
            slop=128 * _UNIT * (most + self.steps.bit_length()),
        )

    def _points(self, tail: float) -> tuple[FloatArray, FloatArray, float, float]:
        """Logarithms of W, Q-masses there, Q-mass at W = 0 and P-mass at W = ∞."""
        decade = _TAIL_DECADES * math.floor(math.log10(tail) / _TAIL_DECADES)
        total = _sum_of(self.shift, self.steps, max(decade, _SMALLEST_DECADE))
        value = total.step * (total.first + np.arange(total.mass.size))
        excess = (np.exp(value) - self.steps) / self.bins  # W - 1
        mass, zero, infinity = total.mass, total.zero, total.infinity / self.bins
        if self.steps < self.bins:  # where all X are 0, W still is the part of the unused bins
            excess = np.concatenate([[-self.steps / self.bins], excess])
            mass, zero = np.concatenate([[zero], mass]), 0.0
        return np.log1p(excess), mass, zero, infinity


def _normalised(mass: FloatArray) -> FloatArray:
    return np.asarray(mass / mass.sum())


class _PositiveLaw(NamedTuple):
    """A positive random variable on the grid {e^{ih}}, at least the true one in convex order.

    Attributes:
        step: h.
        first: number of the first point.
        mass: probabilities of the points.
        zero: probability of 0.
        infinity: mean at +∞, which has no probability.
    """

    step: float
    first: int
    mass: FloatArray
    zero: float
    infinity: float


@lru_cache(maxsize=256)
def _sum_of(shift: float, count: int, decade: int) -> _PositiveLaw:
    """The law of X_1 + ... + X_count.

    Args:
        shift: s; ln X ~ N(-s²/2, s²).
        count: how many.
        decade: logarithm to base ten of what each tail may hold.
    """
    tail = 10.0**decade
    step = _step(shift, count, 1)
    law, reached = _one(shift, step, tail), 1
    for bit in bin(count)[3:]:
        finer = max(1, math.ceil(law.step / _step(shift, count, 2 * reached) - 1e-9))
        law, reached = _cut(_plus(law, law, finer), tail), 2 * reached
        if bit == "1":
            law, reached = _cut(_plus(law, _one(shift, law.step, tail), 1), tail), reached + 1
    return law


def _step(shift: float, count: int, reached: int) -> float:
    """Spacing for partial sums of so many, by which all roundings add little to the variance."""
    variance = math.expm1(min(shift**2, 600.0))
    share = 6 * _TOLERANCE / (count.bit_length() + 1)
    return math.sqrt(share * variance / (reached + variance))


def _one(shift: float, step: float, tail: float) -> _PositiveLaw:
    """The law of X."""
    width = -float(ndtri(tail))
    first = math.floor((-width * shift - shift**2 / 2) / step)
    last = math.ceil((width * shift + shift**2 / 2) / step)
    value = step * np.arange(first, last + 1, dtype=np.float64)
    x = value / shift + shift / 2
    q, p = _normal_cells(x), _normal_cells(x - shift)
    up = np.clip((p * np.exp(-value[:-1]) - q) / math.expm1(step), 0.0, q)
    mass = np.append(q - up, 0.0)
    mass[1:] += up
    # What is below the first point has the mean p: so much of it goes up that the mean is kept.
    low_q, low_p = float(ndtr(x[0])), float(ndtr(x[0] - shift))
    lifted = min(low_p * math.exp(-value[0]), low_q)
    mass[0] += lifted
    high_q, high_p = float(ndtr(-x[-1])), float(ndtr(shift - x[-1]))
    mass[-1] += high_q
    infinity = max(high_p - high_q * math.exp(value[-1]), 0.0)
    return _PositiveLaw(step, first, mass, low_q - lifted, infinity)


def _normal_cells(x: FloatArray) -> FloatArray:
    """Standard normal mass between consecutive x, from the smaller tails."""
    upper = x[:-1] > 0
    tail, other = ndtr(np.where(upper, -x[:-1], x[1:])), ndtr(np.where(upper, -x[1:], x[:-1]))
    return np.asarray(tail - other)


def _plus(a: _PositiveLaw, b: _PositiveLaw, finer: int) -> _PositiveLaw:
    """The law of a sum of two independent ones of one step h, on a grid of step h / ``finer``."""
    step, first = a.step / finer, finer * min(a.first, b.first)
    last = max(a.first + a.mass.size, b.first + b.mass.size)
    mass = np.zeros(finer * (last - min(a.first, b.first)) + math.ceil(math.log(2) / step) + 2)
    for upper, lower, least in ((a, b, 0), (b, a, 1)):
        # Points i of the upper and i - d of the lower one, d >= least: each pair comes once.
        gap = upper.first - lower.first
        apart = np.arange(max(least, gap - lower.mass.size + 1), gap + upper.mass.size)
        above = np.log1p(np.exp(-a.step * apart))
        points = np.floor(above / step).astype(np.int64)
        shares = np.expm1(above - step * points) / math.expm1(step)
        for d, point, up in zip(apart.tolist(), points.tolist(), shares.tolist(), strict=True):
            start, stop = max(0, d - gap), min(upper.mass.size, lower.mass.size + d - gap)
            weight = upper.mass[start:stop] * lower.mass[start + gap - d : stop + gap - d]
            at = finer * (upper.first + start) - first + point
            end = at + finer * (stop - start)
            mass[at:end:finer] += (1 - up) * weight
            mass[at + 1 : end + 1 : finer] += up * weight
    for one, other in ((a, b), (b, a)):
        at = finer * one.first - first
        mass[at : at + finer * one.mass.size : finer] += other.zero * one.mass
    return _PositiveLaw(step, first, mass, a.zero * b.zero, a.infinity + b.infinity)


def _cut(law: _PositiveLaw, tail: float) -> _PositiveLaw:
    """The same without points of its tails, their means kept."""
    value = np.exp(law.step * (law.first + np.arange(law.mass.size)))
    mean = law.mass * value
    low = int(np.searchsorted(np.cumsum(law.mass), tail))
    high = law.mass.size - int(np.searchsorted(np.cumsum(mean[::-1]), tail))
    low = min(low, high - 1)
    mass = law.mass[low:high].copy()
    lifted = float(mean[:low].sum()) / float(value[low])
    mass[0] += lifted
    over = float(law.mass[high:].sum())
    mass[-1] += over
    return _PositiveLaw(
        law.step,
        law.first + low,
        mass,
        law.zero + max(float(law.mass[:low].sum()) - lifted, 0.0),
        law.infinity + max(float(mean[high:].sum()) - over * float(value[high - 1]), 0.0),
    )

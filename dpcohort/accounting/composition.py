# SPDX-License-Identifier: Apache-2.0
"""Many steps together: (ε, δ) of a composition of grid losses, never understated.

For independent losses L_1 + ... + L_T = S on one grid, δ(ε) = E[(1 - e^{ε-S})₊] under P. The
distribution of S is a power of a discrete Fourier transform. Transforming the mass itself would
bury a small δ under rounding noise, so the mass is first tilted by e^{tS}, which moves the centre
of S to about ε::

    δ(ε) = K · Σ_l p̃(l) e^{-t(l-c)} (1 - e^{ε-l})₊,     K = e^{-tc} Π M_i(t)^{n_i},

p̃ the tilted law of S and M_i the moment functions of the grid losses. Rounding errors are then
relative to δ and any δ that float64 can hold is within reach. Everything left out is added:
the mass above the transform's window (Chernoff bound), losses declared infinite, the error of
both transforms and of the power. What wraps around the window can only be counted twice.

The tilt and the grid are chosen from a rough sketch of the losses. A poor choice costs accuracy,
never validity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from dpcohort._validate import FloatArray
from dpcohort.accounting.grids import NEGLIGIBLE, SMALLEST_TAIL, Grid, Sketch, log_gap
from dpcohort.accounting.pairs import GridLoss, LossPair

__all__ = ["Chernoff", "Composition", "GridSteps", "Profile", "profile_of_law"]

_UNIT = 2.0**-53
_USUAL_LOG_DELTA = math.log(1e-12)
_ATTEMPTS = 4
# Where rare large losses decide δ there is no useful saddle: if the Chernoff bound is this much
# above the answer, a mild tilt does better.
_POOR_TILT = 1e3
_MILD_TILT = 1.0
_LARGEST_EXPONENT = 300.0
_FFT_ERROR = 8 * _UNIT  # relative error of a transform per doubling of its length


@dataclass(frozen=True, kw_only=True)
class Profile:
    """An upper bound on δ(ε) at every ε from ``first_loss`` up.

    Between grid points the bound is linear in e^ε, as the true profile of a grid loss is.

    Example:
        >>> profile = Profile(first_loss=0.0, step=1.0, above=np.array([1.0, 0.1]),
        ...                   at_points=np.array([0.06, 0.0]), added=0.01, slop=0.0)
        >>> profile.delta(0.0), profile.delta(5.0)
        (0.07..., 0.01)
    """

    first_loss: float
    step: float
    above: FloatArray  # K Σ_{i ≥ j} of the untilted mass
    at_points: FloatArray  # δ at grid point j without the additions
    added: float
    slop: float

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ at this ε (1 where the window says nothing)."""
        position = (epsilon - self.slop - self.first_loss) / self.step
        if position < 0:
            return 1.0
        index = math.floor(position) + 1
        if index >= self.above.size:
            return min(1.0, self.added)
        share = -math.expm1((position - index) * self.step)
        value = self.at_points[index] + share * (self.above[index] - self.at_points[index])
        return float(min(1.0, value + self.added))

    def epsilon(self, delta: float) -> float | None:
        """Smallest ε ≥ 0 whose δ is at most this one, None if the window does not reach it."""
        room = delta - self.added
        if room <= 0:
            return None
        index = int(np.searchsorted(-self.at_points, -room))
        if index == self.at_points.size:
            return None
        loss = self.first_loss + index * self.step
        if index > 0:
            # δ is met at this point, not at the one before: solve between the two.
            spread = self.above[index] - self.at_points[index]
            share = (room - self.at_points[index]) / spread if spread > 0 else 0.0
            loss += math.log1p(-min(share, -math.expm1(-self.step)))
        elif loss > 0:
            return None
        return max(0.0, loss + self.slop)


class Composition:
    """Independent steps, given as (pair, number of steps); one direction of neighbours.

    Args:
        parts: the distinct steps and how often each is taken.
        tolerance: aim for this relative excess of ε (the grid is chosen for it).

    Example:
        >>> pair = LossPair(kind="remove", shift=1 / 1.5, rate=0.2)
        >>> steps = Composition([(pair, 100)])
        >>> 7.5537 < steps.epsilon(1e-5) < 7.555
        True
        >>> 0.99e-5 < steps.delta(7.555) < 1e-5
        True
    """

    def __init__(self, parts: Sequence[tuple[LossPair, int]], *, tolerance: float = 1e-4) -> None:
        self._parts = [(pair, count) for pair, count in parts if count > 0]
        self._tolerance = tolerance

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ at this ε."""
        if not self._parts:
            return 0.0
        best, log_delta, largest_tilt = 1.0, _USUAL_LOG_DELTA, math.inf
        for _ in range(_ATTEMPTS):
            sketch = Sketch(self._parts, log_delta)
            target = sketch.at_epsilon(epsilon)
            target = target._replace(
                log_delta=min(target.log_delta, log_delta), tilt=min(target.tilt, largest_tilt)
            )
            profile, chernoff = self._profile(sketch.grid(target, tolerance=self._tolerance))
            found = profile.delta(epsilon)
            best = min(best, found, chernoff.delta(epsilon))
            if profile.added > 1e-3 * found:
                rest = max(found - profile.added, 1e-280)
                log_delta = min(target.log_delta - 8, math.log(rest))
            elif chernoff.delta(epsilon) > _POOR_TILT * found and target.tilt > _MILD_TILT:
                largest_tilt = _MILD_TILT
            else:
                break
        return best

    def epsilon(self, delta: float) -> float:
        """Upper bound on the smallest ε ≥ 0 at this δ."""
        if not self._parts:
            return 0.0
        sketch = Sketch(self._parts, math.log(delta))
        target = sketch.at_delta(math.log(delta))
        best, least = math.inf, 0.25
        for _ in range(_ATTEMPTS):
            grid = sketch.grid(target, tolerance=self._tolerance, least=least)
            profile, chernoff = self._profile(grid)
            found = profile.epsilon(delta)
            best = min(best, chernoff.epsilon(delta), math.inf if found is None else found)
            poor = target.tilt > _MILD_TILT and chernoff.delta(best) > _POOR_TILT * delta
            near = found is not None and abs(found - target.epsilon) <= target.epsilon / 2
            if best == 0 or (near and not poor):
                break
            least = 0.025
            expected = target.epsilon / 2 if found is None else best
            target = sketch.at_epsilon(expected)._replace(log_delta=math.log(delta))
            if poor:
                target = target._replace(tilt=_MILD_TILT)
        return best

    def _profile(self, grid: Grid) -> tuple[Profile, Chernoff]:
        """Bounds on this grid: a sharp one around the expected answer, a rough one everywhere."""
        steps = GridSteps.of(self._parts, grid)
        log_moment, tilted = steps.tilt(grid.tilt)
        first = math.floor(grid.window.low / grid.step) - 1
        length = next_fast_len(math.ceil(grid.window.length / grid.step) + 16, real=True)
        law, error = _law_of_sum(steps.losses, tilted, steps.counts, first, length)
        loss = grid.step * (first + np.arange(length))

        order = grid.window.high_order
        over = math.exp(min(steps.tilt(order)[0] - order * float(loss[-1]), 0.0))
        profile = profile_of_law(
            law,
            error,
            loss=loss,
            tilt=grid.tilt,
            log_moment=log_moment,
            step=grid.step,
            over=over,
            infinity=steps.infinity,
            slop=steps.slop,
        )
        return profile, Chernoff(grid.tilt, log_moment, steps.infinity, steps.slop)


def profile_of_law(
    law: FloatArray,
    error: float,
    *,
    loss: FloatArray,
    step: float,
    tilt: float,
    log_moment: float,
    over: float,
    infinity: float,
    slop: float,
) -> Profile:
    """The bound on δ(ε) that the tilted law of a sum gives.

    Args:
        law: tilted probabilities of the sum, up to ``error`` each.
        error: largest error of an entry.
        loss: the sums, ``step`` apart.
        step: grid spacing.
        tilt: order t of the tilt.
        log_moment: ln E e^{tS}.
        over: probability of a sum above the last one.
        infinity: probability of an infinite loss.
        slop: how far rounding may have understated a sum.

    Example:
        >>> one = profile_of_law(np.array([0.9, 0.1]), 0.0, loss=np.array([0.0, 1.0]), step=1.0,
        ...                      tilt=0.0, log_moment=0.0, over=0.0, infinity=0.0, slop=0.0)
        >>> round(one.delta(0.0), 4)
        0.0632
    """
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


@dataclass(frozen=True)
class GridSteps:
    """The losses of all steps on one grid, and how often each is taken.

    Example:
        >>> loss = GridLoss(first=0, mass=np.array([0.5, 0.5]), infinity=0.0, slop=0.0)
        >>> log_moment, _ = GridSteps([loss], [2], 1.0).tilt(0.0)
        >>> bool(abs(log_moment) < 1e-12)
        True
    """

    losses: list[GridLoss]
    counts: list[int]
    step: float

    @classmethod
    def of(cls, parts: Sequence[tuple[LossPair, int]], grid: Grid) -> GridSteps:
        """The losses of these steps on this grid."""
        total = sum(count for _, count in parts)
        tail = max(NEGLIGIBLE * math.exp(max(grid.log_delta, -650.0)) / total, SMALLEST_TAIL)
        losses = [
            pair.discretize(grid.step, tail=tail, lowest=lowest)
            for (pair, _), lowest in zip(parts, grid.lowest, strict=True)
        ]
        return cls(losses, [count for _, count in parts], grid.step)

    @property
    def infinity(self) -> float:
        """Probability that at least one loss was declared infinite."""
        finite = 0.0
        for loss, count in zip(self.losses, self.counts, strict=True):
            finite += count * (math.log1p(-loss.infinity) if loss.infinity < 1 else -math.inf)
        return -math.expm1(finite)

    @property
    def slop(self) -> float:
        """How far rounding may have understated the sum."""
        return sum(n * loss.slop for loss, n in zip(self.losses, self.counts, strict=True))

    def tilt(self, order: float) -> tuple[float, list[FloatArray]]:
        """Σ n ln M(t) (rounded up), and each loss's mass tilted by e^{tL} and normalised."""
        log_moment, tilted = 0.0, []
        for grid, count in zip(self.losses, self.counts, strict=True):
            exponent = order * self.step * (grid.first + np.arange(grid.mass.size))
            peak = float(exponent[grid.mass > 0].max())
            weights = grid.mass * np.exp(np.minimum(exponent - peak, 0.0))
            total = float(weights.sum())
            tilted.append(weights / total)
            log_moment += count * (peak + math.log(total))
            log_moment += 8 * _UNIT * count * (16 + abs(peak) + abs(math.log(total)))
        return log_moment, tilted


@dataclass(frozen=True)
class Chernoff:
    """δ ≤ M e^{-εt} t^t/(1+t)^{1+t}: looser than a profile, but valid at every ε.

    Example:
        >>> bound = Chernoff(tilt=1.0, log_moment=0.0, infinity=0.0, slop=0.0)
        >>> bound.delta(0.0), bound.epsilon(0.25)
        (0.25, 0.0)
    """

    tilt: float
    log_moment: float
    infinity: float
    slop: float

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ at this ε."""
        exponent = self.log_moment - self.tilt * (epsilon - self.slop) + log_gap(self.tilt)
        return math.exp(min(exponent, 0.0)) + self.infinity

    def epsilon(self, delta: float) -> float:
        """Upper bound on ε at this δ."""
        if delta <= self.infinity:
            return math.inf
        bound = self.log_moment - math.log(delta - self.infinity) + log_gap(self.tilt)
        return max(0.0, bound / self.tilt + self.slop)


def _discounted_sums(terms: FloatArray, factor: float) -> FloatArray:
    """y_k = x_k + factor y_{k-1}, by doubling; positive terms only, so nothing cancels."""
    sums, reach = terms.copy(), 1
    while reach < sums.size and factor > 0:
        sums[reach:] += factor * sums[:-reach]
        factor, reach = factor * factor, 2 * reach
    return sums


def _law_of_sum(
    losses: Sequence[GridLoss],
    tilted: Sequence[FloatArray],
    counts: Sequence[int],
    first: int,
    length: int,
) -> tuple[FloatArray, float]:
    """Law of the sum, wrapped onto ``length`` points from ``first``, and its largest error.

    Example:
        >>> loss = GridLoss(first=0, mass=np.array([0.5, 0.5]), infinity=0.0, slop=0.0)
        >>> law, error = _law_of_sum([loss], [loss.mass], [2], first=0, length=4)
        >>> [round(float(p), 9) for p in law[:3]], error < 1e-12
        ([0.25, 0.5, 0.25], True)
    """
    log_size = np.zeros(length // 2 + 1)  # ln |transform of the sum|
    log_cover = np.zeros_like(log_size)  # the same from moduli raised by their error
    angle = np.zeros_like(log_size)
    origin = 0
    covers = []
    depth = math.log2(length)
    for loss, mass, count in zip(losses, tilted, counts, strict=True):
        index = np.arange(mass.size)
        centre = round(float(mass @ index))
        folded = np.bincount((index - centre) % length, weights=mass, minlength=length)
        spectrum = rfft(folded)
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
    law = irfft(np.exp(log_size) * np.exp(1j * angle), length)
    inverse_error = _FFT_ERROR * depth * math.sqrt(float(law @ law))
    return np.roll(law, (origin - first) % length), 2 * power_error + inverse_error

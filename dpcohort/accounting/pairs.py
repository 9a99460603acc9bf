# SPDX-License-Identifier: Apache-2.0
"""One step of training as a pair of distributions, and its privacy loss on a grid.

A step adds N(0, z²) noise to a clipped sum of a random batch. Whatever the data and the other
records are, its outputs on two neighbouring data sets are no easier to tell apart than the two
one-dimensional Gaussian mixtures P and Q below (unit noise, s = 1/z, r the sampling rate):

=========  =============================  =============================  ====================
kind       P                              Q                              covers
=========  =============================  =============================  ====================
remove     (1-r) N(0,1) + r N(s,1)        N(0,1)                         Poisson, zero-out
add        N(0,1)                         (1-r) N(0,1) + r N(-s,1)       Poisson, zero-out
replace    (1-r) N(0,1) + r N(s,1)        (1-r) N(0,1) + r N(-s,1)       Poisson, replace-one
fixed      the symmetric pair with the profile of "remove" at 2s for     fixed, replace-one
           ε ≥ 0 (Dong, Roth, Su 2019, subsampling theorem)
=========  =============================  =============================  ====================

The privacy loss L = ln P/Q is put on the grid {i·h} so that composition can only be overstated.
Two moves are used, both safe because (1 - e^{ε-S})₊ is increasing in every loss and convex in
every e^{-loss} of the sum S: the mass of a cell goes to the two ends of the cell so that its P-
and Q-mass are kept ("connect the dots", arXiv 2207.04380), and rounding errors, the tail above
the grid (to +∞) and the tail below it (to the first point) go upwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from dpcohort._validate import FloatArray

__all__ = ["GridLoss", "Interval", "LossPair", "pairs_of_step"]

_UNIT = 2.0**-53
_OVERFLOW = 30.0  # above this exponent, expm1 is replaced by its logarithm
_SKETCH_DENSITY = 6.0  # sketch nodes per standard deviation


class Interval(NamedTuple):
    """An interval of outputs of a step.

    Example:
        >>> Interval(-1.0, 2.0).high
        2.0
    """

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class GridLoss:
    """A privacy loss on the grid {i·h}: mass[j] sits at loss (first + j)·h, the rest at +∞.

    Attributes:
        first: index of the first grid point.
        mass: probabilities under P, at least those of a loss that dominates the true one.
        infinity: probability of an unbounded loss (the tail cut off above the grid).
        slop: how far rounding may have understated the loss of a point.

    Example:
        >>> pair = LossPair(kind="remove", shift=1.0, rate=0.5)
        >>> grid = pair.discretize(0.25, tail=1e-6, lowest=-0.5)
        >>> grid.first, bool(abs(grid.mass.sum() + grid.infinity - 1) < 1e-12)
        (-2, True)
    """

    first: int
    mass: FloatArray
    infinity: float
    slop: float


@dataclass(frozen=True, kw_only=True)
class LossPair:
    """The dominating pair of one step (see the table above).

    Attributes:
        kind: which row of the table.
        shift: distance between the Gaussians in units of the noise: s, or 2s for ``fixed``.
        rate: sampling rate r.

    Example:
        >>> pair = LossPair(kind="remove", shift=1.0, rate=1.0)
        >>> pair.loss(np.array([0.5, 1.5]))
        array([0., 1.])
    """

    kind: Literal["remove", "add", "replace", "fixed"]
    shift: float
    rate: float

    @property
    def distance(self) -> float:
        """Total variation distance of P and Q, rounded up."""
        half = self.shift if self.kind == "replace" else self.shift / 2
        return min(1.0, self.rate * math.erf(half / math.sqrt(2)) * (1 + 1e-14))

    def loss(self, x: FloatArray) -> FloatArray:
        """Privacy loss at output x; increasing in x."""
        if self.kind == "add":
            return -self._remove_loss(-x)
        if self.kind == "replace":
            return self._remove_loss(x) - self._remove_loss(-x)
        return self._remove_loss(x)

    def output(self, loss: FloatArray) -> FloatArray:
        """The output x with this privacy loss; ±inf outside the range of the loss."""
        if self.kind == "add":
            return -self._remove_output(-loss)
        if self.kind == "replace":
            # With v = e^{s x - L/2}: v - 1/v = 2 (1-r)/r e^{s²/2} sinh(L/2).
            half = np.abs(loss) / 2
            with np.errstate(divide="ignore", over="ignore"):
                log_sinh = np.where(
                    half > _OVERFLOW, half - np.log(2.0), np.log(np.sinh(np.minimum(half, 31.0)))
                )
                log_y = np.log1p(-self.rate) - np.log(self.rate) + self.shift**2 / 2 + log_sinh
                lift = np.where(
                    log_y > _OVERFLOW,
                    log_y + np.log(2.0),
                    np.arcsinh(np.exp(np.minimum(log_y, 31.0))),
                )
            return np.asarray(np.sign(loss) * (half + lift) / self.shift, dtype=np.float64)
        return self._remove_output(loss)

    def sketch(
        self, tail: float, *, nodes_per_deviation: float = _SKETCH_DENSITY
    ) -> tuple[FloatArray, FloatArray]:
        """Losses and their approximate probabilities, for choosing a grid (never for a bound)."""
        symmetric = self.kind == "fixed"
        low = self.shift / 2 if symmetric else -9.0
        high = self._top(tail)
        # Half a bell needs more nodes than a whole one, on which equal weights are nearly exact.
        density = 3 * nodes_per_deviation if symmetric else nodes_per_deviation
        count = int(np.clip(density * (high - low), 64, 4096))
        width = (high - low) / count
        x = low + width * np.arange(0.5, count)
        loss = self.loss(x)
        base = np.exp(-(x**2) / 2) * width / np.sqrt(2 * np.pi)
        if self.kind == "add":
            return loss, base / base.sum()
        moved = np.exp(-((x - self.shift) ** 2) / 2) * width / np.sqrt(2 * np.pi)
        mass = (1 - self.rate) * base + self.rate * moved
        if not symmetric:
            return loss, mass / mass.sum()
        atom = max(1 - float(base.sum() + mass.sum()), 0.0)
        return np.concatenate([-loss, [0.0], loss]), np.concatenate([base, [atom], mass])

    def discretize(self, step: float, *, tail: float, lowest: float) -> GridLoss:
        """The loss on the grid {i·step}, never understated.

        Args:
            step: grid spacing h.
            tail: about how much probability may be declared an infinite loss.
            lowest: losses below this are raised to about this.
        """
        last = int(np.ceil(self.loss(np.array([self._top(tail)]))[0] / step)) + 1
        first = min(math.floor(lowest / step), last - 2)
        if self.kind == "fixed":
            return self._discretize_symmetric(step, first, last)
        losses = step * np.arange(first, last + 1, dtype=np.float64)
        cells = _Cells.between(self, losses, step)
        mass = np.zeros(losses.size)
        mass[:-1] += cells.mass - cells.high_up
        mass[1:] += cells.high_up
        mass[0] += cells.below
        slop = 128 * _UNIT * float(np.abs(losses[[0, -1]]).max())
        return GridLoss(first=first, mass=mass, infinity=cells.above, slop=slop)

    def _discretize_symmetric(self, step: float, first: int, last: int) -> GridLoss:
        """``fixed``: positive losses as ``remove``, their mirror image, and an atom at 0."""
        losses = step * np.arange(0, last + 1, dtype=np.float64)
        cells = _Cells.between(self, losses, step)
        middle = last
        mass = np.zeros(2 * last + 1)
        mass[middle:-1] += cells.mass - cells.high_up
        mass[middle + 1 :] += cells.high_up
        # A mirrored point carries the Q-mass of its original; there, upwards is towards 0.
        mirrored_low = np.minimum(cells.high_down * np.exp(-losses[1:]), cells.q_mass)
        mass[:middle] += mirrored_low[::-1]
        mass[1 : middle + 1] += (cells.q_mass - mirrored_low)[::-1]
        mass[0] += cells.q_above
        mass[middle] += (1 - self.rate) * (2 * float(ndtr(self.shift / 2)) - 1)
        cut = min(max(first + last, 0), middle)
        mass[cut] += mass[:cut].sum()
        slop = 128 * _UNIT * float(losses[-1])
        return GridLoss(first=cut - last, mass=mass[cut:], infinity=cells.above, slop=slop)

    def level(
        self,
        step: float,
        *,
        inside: Interval | None,
        bound: float,
        lowest: float,
        top: float,
    ) -> tuple[GridLoss, Interval]:
        """The losses of one size on the grid {i·step}, given that there is no larger one.

        A step whose output lies in ``inside`` counts as a loss of 0, and the other losses of the
        level as L - ν, ν the loss of "the output lies in ``inside``" (see :mod:`.rare_losses`).

        Args:
            step: grid spacing h.
            inside: outputs of the levels below; None for the lowest level.
            bound: losses up to about this size, or infinity for the top level.
            lowest: losses below this are raised to about this.
            top: losses above this are declared infinite.

        Returns:
            The losses, and the outputs of this level and those below it.

        Example:
            >>> pair = LossPair(kind="remove", shift=2.0, rate=1e-4)
            >>> small, inside = pair.level(1e-4, inside=None, bound=0.1, lowest=-1.0, top=9.0)
            >>> large, _ = pair.level(1e-2, inside=inside, bound=math.inf, lowest=-1.0, top=9.0)
            >>> round(float(small.mass.sum()), 12), bool(large.mass.max() > 0.999)
            (1.0, True)
        """
        if bound == math.inf:
            outer = Interval(-math.inf, math.inf)
        else:
            ends = self.output(np.array([-bound, bound]))
            outer = Interval(float(ends[0]), float(ends[1]))
        if inside is not None:
            outer = Interval(min(outer.low, inside.low), max(outer.high, inside.high))
        if self.kind == "fixed":
            pieces = [Interval(self.shift / 2 if inside is None else inside.high, outer.high)]
        elif inside is None:
            pieces = [outer]
        else:
            pieces = [Interval(outer.low, inside.low), Interval(inside.high, outer.high)]
        origin = 0.0 if inside is None else self._log_ratio(inside)
        parts = [
            self._piece(piece, step, origin, lowest, top)
            for piece in pieces
            if piece.low < piece.high
        ]
        grid = _joined(parts, lowest=math.floor(lowest / step))
        middle = -grid.first
        if inside is not None:
            grid.mass[middle] += 1 - self._outside(inside)[0]
        elif self.kind == "fixed":
            grid.mass[middle] += (1 - self.rate) * (2 * float(ndtr(self.shift / 2)) - 1)
        share = 1 - self._outside(outer)[0]
        grid.mass[:] *= (1 + 8 * _UNIT) / share
        return replace(grid, infinity=grid.infinity / share), outer

    def _piece(
        self, piece: Interval, step: float, origin: float, lowest: float, top: float
    ) -> GridLoss:
        """The losses of the outputs in an interval, less ``origin``, on the grid."""
        ends = self.loss(np.array([piece.low, piece.high]))
        high = min(float(ends[1]), top) - origin
        low = min(max(float(ends[0]), lowest) - origin, high - step)
        first, last = math.floor(low / step), math.ceil(high / step)
        if self.kind == "fixed":
            first = max(first, 0)
        losses = origin + step * np.arange(first, last + 1, dtype=np.float64)
        x = np.clip(self.output(losses), piece.low, piece.high)
        if piece.low > -math.inf:
            x[0] = piece.low
        if piece.high < math.inf:
            x[-1] = piece.high
        cells = _Cells.between(self, losses, step, x)
        mass = np.zeros(losses.size)
        mass[:-1] += cells.mass - cells.high_up
        mass[1:] += cells.high_up
        if piece.low == -math.inf:
            mass[0] += cells.below
        infinity = cells.above if piece.high == math.inf else 0.0
        slop = (128 + 4 * self.shift**2) * _UNIT * float(np.abs(losses[[0, -1]]).max())
        if self.kind != "fixed":
            return GridLoss(first=first, mass=mass, infinity=infinity, slop=slop)
        # A mirrored point carries the Q-mass of its original; there, upwards is towards 0.
        whole = np.zeros(2 * last + 1)
        whole[last + first :] += mass
        mirrored_low = np.minimum(cells.high_down * np.exp(-losses[1:]), cells.q_mass)
        whole[: last - first] += mirrored_low[::-1]
        whole[1 : last - first + 1] += (cells.q_mass - mirrored_low)[::-1]
        if piece.high == math.inf:
            whole[0] += cells.q_above
        return GridLoss(first=-last, mass=whole, infinity=infinity, slop=slop)

    def _outside(self, interval: Interval) -> tuple[float, float]:
        """P- and Q-mass of the outputs beyond an interval (for ``fixed``, of its losses)."""
        low, high, s = interval.low, interval.high, self.shift
        if self.kind == "fixed":
            base, moved = float(ndtr(-high)), float(ndtr(s - high))
            both = (2 - self.rate) * base + self.rate * moved
            return both, both
        base = float(ndtr(low) + ndtr(-high))
        up = float(ndtr(low - s) + ndtr(s - high))
        down = float(ndtr(low + s) + ndtr(-s - high))
        p = base if self.kind == "add" else (1 - self.rate) * base + self.rate * up
        q = base if self.kind == "remove" else (1 - self.rate) * base + self.rate * down
        return p, q

    def _log_ratio(self, interval: Interval) -> float:
        """ln P/Q of an interval of outputs."""
        p, q = self._outside(interval)
        return math.log1p(-p) - math.log1p(-q)

    def _remove_loss(self, x: FloatArray) -> FloatArray:
        exponent = self.shift * x - self.shift**2 / 2
        small = np.log1p(self.rate * np.expm1(np.minimum(exponent, _OVERFLOW)))
        with np.errstate(divide="ignore"):
            large = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + exponent)
        return np.where(exponent > _OVERFLOW, large, small)

    def _remove_output(self, loss: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            ratio = np.expm1(np.minimum(loss, _OVERFLOW)) / self.rate
            small = np.log1p(np.maximum(ratio, -1.0))
            rest = np.log1p(-(1 - self.rate) * np.exp(-np.maximum(loss, 1.0)))
            large = loss + rest - np.log(self.rate)
        return np.where(loss > _OVERFLOW, large, small) / self.shift + self.shift / 2

    def _top(self, tail: float) -> float:
        """An output above which P has at most ``tail`` (for ``fixed``: the positive part of P)."""
        top = -float(ndtri(tail / 2))
        if self.kind == "add":
            return top
        moved = min(tail / (2 * self.rate), 0.5)
        return max(top, self.shift - float(ndtri(moved)), self.shift / 2 + 1.0)


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """P- and Q-mass of the cells between grid points (rounded up), split over their two ends.

    ``high_up`` and ``high_down`` are the share of P-mass at the upper end, rounded up and down.
    """

    mass: FloatArray
    q_mass: FloatArray
    high_up: FloatArray
    high_down: FloatArray
    above: float
    q_above: float
    below: float

    @classmethod
    def between(
        cls, pair: LossPair, losses: FloatArray, step: float, x: FloatArray | None = None
    ) -> _Cells:
        x = pair.output(losses) if x is None else x
        rate = pair.rate
        base = _normal_cells(x)
        moved = base if pair.kind == "add" else _normal_cells(x - pair.shift)
        mirror = _normal_cells(x + pair.shift) if pair.kind in ("add", "replace") else base
        p = base if pair.kind == "add" else base.blend(moved, rate)
        q = base.blend(mirror, rate) if pair.kind in ("add", "replace") else base
        # P - Q = r (moved - mirror): formed directly, it keeps its accuracy when s is tiny.
        high, error = _share_above(
            losses[:-1],
            step,
            p=p,
            q=q,
            difference=rate * (moved.mass - mirror.mass),
            difference_error=rate * (moved.error + mirror.error),
        )
        p_mass, q_mass = p.mass + p.error, q.mass + q.error
        return cls(
            mass=p_mass,
            q_mass=q_mass,
            high_up=np.clip(high + error, 0.0, p_mass),
            high_down=np.clip(high - error, 0.0, p_mass),
            below=p.below,
            above=p.above,
            q_above=q.above,
        )


@dataclass(frozen=True, kw_only=True)
class _NormalMass:
    """Mass of a Gaussian mixture between consecutive outputs, its rounding error, and the ends."""

    mass: FloatArray
    error: FloatArray
    below: float
    above: float

    def blend(self, other: _NormalMass, rate: float) -> _NormalMass:
        return _NormalMass(
            mass=(1 - rate) * self.mass + rate * other.mass,
            error=(1 - rate) * self.error + rate * other.error,
            below=(1 - rate) * self.below + rate * other.below,
            above=(1 - rate) * self.above + rate * other.above,
        )


def _normal_cells(x: FloatArray) -> _NormalMass:
    """Standard normal mass between consecutive x.

    Differences are taken between the smaller tails, which keeps relative accuracy far out.
    """
    tail = ndtr(-np.abs(x))
    left, right = tail[:-1], tail[1:]
    mass = np.abs(right - left)
    straddles = (x[:-1] < 0) & (x[1:] > 0)
    mass[straddles] = (0.5 - left[straddles]) + (0.5 - right[straddles])
    square = np.minimum(x * x, 1e4)  # an infinite x has no tail and no error
    error = 8 * _UNIT * (1 + square) * tail
    return _NormalMass(
        mass=mass,
        error=error[1:] + error[:-1],
        below=float(tail[0] if x[0] < 0 else 1 - tail[0]),
        above=float(tail[-1] if x[-1] > 0 else 1 - tail[-1]),
    )


def _share_above(
    low: FloatArray,
    step: float,
    *,
    p: _NormalMass,
    q: _NormalMass,
    difference: FloatArray,
    difference_error: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """P-mass for the upper end of each cell, (p - q e^l)/(1 - e^{-h}), and its rounding error.

    Written through ``difference`` = p - q so that nothing cancels twice: for l ≥ 0 as
    difference - q (e^l - 1), for l < 0 as e^l difference - p (e^l - 1).
    """
    growth = np.expm1(np.minimum(low, 700.0))  # a smaller growth only raises the share
    decay = np.minimum(1.0 + growth, 1.0)
    above_zero = low >= 0
    second = np.where(above_zero, q.mass, p.mass) * growth
    second_error = np.where(above_zero, q.error, p.error) * np.abs(growth)
    error = decay * difference_error + second_error + 4 * _UNIT * np.abs(second)
    scale = -np.expm1(-step)
    return (decay * difference - second) / scale, error / scale


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


def pairs_of_step(
    *, noise_multiplier: float, sampling_rate: float, sampler: str, neighbours: str
) -> tuple[LossPair, ...]:
    """The dominating pairs of one step; its privacy is the worst over them.

    Zero-out is not symmetric, so both orders of the two data sets are needed.

    Example:
        >>> [pair.kind for pair in pairs_of_step(noise_multiplier=2.0, sampling_rate=0.1,
        ...                                      sampler="poisson", neighbours="zero-out")]
        ['remove', 'add']
    """
    shift = 1 / noise_multiplier
    if sampler == "fixed":
        return (LossPair(kind="fixed", shift=2 * shift, rate=sampling_rate),)
    if neighbours == "replace-one":
        return (LossPair(kind="replace", shift=shift, rate=sampling_rate),)
    return (
        LossPair(kind="remove", shift=shift, rate=sampling_rate),
        LossPair(kind="add", shift=shift, rate=sampling_rate),
    )

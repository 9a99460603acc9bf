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
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.accounting.gaussian import ndtr, ndtri

__all__ = ["Cells", "GridLoss", "LossPair", "pairs_of_step"]

_UNIT = 2.0**-53
_OVERFLOW = 30.0  # above this exponent, expm1 is replaced by its logarithm
_SKETCH_DENSITY = 6.0  # sketch nodes per standard deviation


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
        cells = Cells.between(self, losses, step)
        mass = cells.at_points()
        mass[0] += cells.below
        slop = 128 * _UNIT * float(np.abs(losses[[0, -1]]).max())
        return GridLoss(first=first, mass=mass, infinity=cells.above, slop=slop)

    def _discretize_symmetric(self, step: float, first: int, last: int) -> GridLoss:
        """``fixed``: positive losses as ``remove``, their mirror image, and an atom at 0."""
        losses = step * np.arange(0, last + 1, dtype=np.float64)
        cells = Cells.between(self, losses, step)
        middle = last
        mass = np.zeros(2 * last + 1)
        mass[middle:] += cells.at_points()
        mass[: middle + 1] += cells.mirrored(losses)
        mass[0] += cells.q_above
        mass[middle] += (1 - self.rate) * (2 * float(ndtr(self.shift / 2)) - 1)
        cut = min(max(first + last, 0), middle)
        mass[cut] += mass[:cut].sum()
        slop = 128 * _UNIT * float(losses[-1])
        return GridLoss(first=cut - last, mass=mass[cut:], infinity=cells.above, slop=slop)

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
class Cells:
    """P- and Q-mass of the cells between grid points (rounded up), split over their two ends.

    Attributes:
        mass: P-mass of each cell.
        q_mass: Q-mass of each cell.
        high_up: the share of P-mass at the upper end, rounded up.
        high_down: the same rounded down.
        above: P-mass above the last grid point.
        q_above: Q-mass above it.
        below: P-mass below the first one.

    Example:
        >>> pair = LossPair(kind="remove", shift=1.0, rate=0.5)
        >>> cells = Cells.between(pair, np.array([-0.25, 0.0, 0.25]), 0.25)
        >>> bool(abs(cells.below + cells.mass.sum() + cells.above - 1) < 1e-12)
        True
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
    ) -> Cells:
        """The cells between these losses, ``step`` apart, or between these outputs."""
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

    def at_points(self) -> FloatArray:
        """P-mass of the grid points: that of a cell at its two ends."""
        mass = np.append(self.mass - self.high_up, 0.0)
        mass[1:] += self.high_up
        return mass

    def mirrored(self, losses: FloatArray) -> FloatArray:
        """P-mass of the mirror images of these grid points, from the lowest up.

        A mirrored point carries the Q-mass of its original; there, upwards is towards 0.
        """
        low = np.minimum(self.high_down * np.exp(-losses[1:]), self.q_mass)
        mass = np.append(low[::-1], 0.0)
        mass[1:] += (self.q_mass - low)[::-1]
        return mass


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

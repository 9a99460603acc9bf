# SPDX-License-Identifier: Apache-2.0
"""The privacy losses of one step that are of a certain size, on a grid of their own.

A step is played in levels, from the largest losses to the smallest: is the loss one of this level,
and which one, or is it smaller? Given that it is not larger, the losses of a level and "smaller"
are a pair of distributions like any other. Levels are cut where the output is: the outputs of a
level and of those below it are an interval.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from dpcohort.accounting.pairs import Cells, GridLoss, LossPair

__all__ = ["Interval", "level_of"]

_UNIT = 2.0**-53


class Interval(NamedTuple):
    """An interval of outputs of a step.

    Example:
        >>> Interval(-1.0, 2.0).high
        2.0
    """

    low: float
    high: float


def level_of(
    pair: LossPair,
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
    if bound == math.inf:
        outer = Interval(-math.inf, math.inf)
    else:
        ends = pair.output(np.array([-bound, bound]))
        outer = Interval(float(ends[0]), float(ends[1]))
    if inside is not None:
        outer = Interval(min(outer.low, inside.low), max(outer.high, inside.high))
    if pair.kind == "fixed":
        pieces = [Interval(pair.shift / 2 if inside is None else inside.high, outer.high)]
    elif inside is None:
        pieces = [outer]
    else:
        pieces = [Interval(outer.low, inside.low), Interval(inside.high, outer.high)]
    origin = 0.0 if inside is None else _log_ratio(pair, inside)
    parts = [
        _piece(pair, piece, step, origin, lowest, top) for piece in pieces if piece.low < piece.high
    ]
    grid = _joined(parts, lowest=math.floor(lowest / step))
    middle = -grid.first
    if inside is not None:
        grid.mass[middle] += 1 - _outside(pair, inside)[0]
    elif pair.kind == "fixed":
        grid.mass[middle] += (1 - pair.rate) * (2 * float(ndtr(pair.shift / 2)) - 1)
    share = 1 - _outside(pair, outer)[0]
    grid.mass[:] *= (1 + 8 * _UNIT) / share
    return replace(grid, infinity=grid.infinity / share), outer


def _piece(
    pair: LossPair, piece: Interval, step: float, origin: float, lowest: float, top: float
) -> GridLoss:
    """The losses of the outputs in an interval, less ``origin``, on the grid."""
    ends = pair.loss(np.array([piece.low, piece.high]))
    high = min(float(ends[1]), top) - origin
    low = min(max(float(ends[0]), lowest) - origin, high - step)
    first, last = math.floor(low / step), math.ceil(high / step)
    if pair.kind == "fixed":
        first = max(first, 0)
    losses = origin + step * np.arange(first, last + 1, dtype=np.float64)
    x = np.clip(pair.output(losses), piece.low, piece.high)
    if piece.low > -math.inf:
        x[0] = piece.low
    if piece.high < math.inf:
        x[-1] = piece.high
    cells = Cells.between(pair, losses, step, x)
    mass = np.zeros(losses.size)
    mass[:-1] += cells.mass - cells.high_up
    mass[1:] += cells.high_up
    if piece.low == -math.inf:
        mass[0] += cells.below
    infinity = cells.above if piece.high == math.inf else 0.0
    slop = (128 + 4 * pair.shift**2) * _UNIT * float(np.abs(losses[[0, -1]]).max())
    if pair.kind != "fixed":
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


def _outside(pair: LossPair, interval: Interval) -> tuple[float, float]:
    """P- and Q-mass of the outputs beyond an interval (for ``fixed``, of its losses)."""
    low, high, s = interval.low, interval.high, pair.shift
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


def _log_ratio(pair: LossPair, interval: Interval) -> float:
    """Logarithm of P/Q of an interval of outputs."""
    p, q = _outside(pair, interval)
    return math.log1p(-p) - math.log1p(-q)


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

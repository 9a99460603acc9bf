# SPDX-License-Identifier: Apache-2.0
"""Exponential moments of the composed privacy loss, and the bounds they give.

K(t) = log M(t) of one step (:mod:`dpcohort.accounting.loss_grid`) determines T steps: the moments
of the sum of losses are those of T K. For every t > 0 (Chernoff; the conversion is that of
Canonne, Kamath and Steinke, 2020)

    log delta <= T K(t) - epsilon t + t log t - (1 + t) log(1 + t),

which is always valid and asks for some percent more noise than needed. The saddle-point
approximation, which divides by the width of the integrand as well, is close enough to start a
search from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.loss_grid import LossGrid, Pair, frequency, loss_grid, span

__all__ = [
    "Clients",
    "Cumulants",
    "blocks",
    "chernoff_log_delta",
    "cumulants",
    "grid_sizes",
    "saddle_order",
    "saddle_point_log_delta",
    "solve_order",
    "tilt",
]

# Elements of one block of clients: small enough to stay in the cache.
_BLOCK = 20_000

_ORDER_MIN, _ORDER_MAX = 1e-12, 1e18

_LEFT_OUT = 1e-8


@dataclass(frozen=True, kw_only=True)
class Clients:
    """What a search is about: one pair of distributions, one row of numbers a client.

    Attributes:
        pair: which pair of distributions one step gives.
        epsilon: promised epsilon.
        log_delta: logarithm of the promised delta.
        rate: sampling rate, below 1.
        steps: number of steps T.
        reach: standard deviations beyond which P has less than 1e-8 delta/T of its mass. What lies
            beyond is left out and adds at most 1e-8 delta, thousands of times less than the margin.
    """

    pair: Pair
    epsilon: FloatArray
    log_delta: FloatArray
    rate: FloatArray
    steps: FloatArray
    reach: FloatArray

    @classmethod
    def of(
        cls,
        pair: Pair,
        *,
        epsilon: FloatArray,
        delta: FloatArray,
        rate: FloatArray,
        steps: FloatArray,
    ) -> Clients:
        """Clients from their promises."""
        return cls(
            pair=pair,
            epsilon=epsilon,
            log_delta=np.log(delta),
            rate=rate,
            steps=steps,
            reach=-ndtri(np.maximum(_LEFT_OUT * delta / steps, 1e-300)),
        )

    def take(self, index: IntArray) -> Clients:
        """The same for some of the clients."""
        return Clients(
            pair=self.pair,
            epsilon=self.epsilon[index],
            log_delta=self.log_delta[index],
            rate=self.rate[index],
            steps=self.steps[index],
            reach=self.reach[index],
        )

    def facing(self, pair: Pair) -> Clients:
        """The same clients under another pair of distributions."""
        return replace(self, pair=pair)

    def shift(self, log_noise: FloatArray) -> FloatArray:
        """Mu of one step at noise multiplier z: 1/z, or 2/z where a batch swaps two records."""
        mu: FloatArray = (2.0 if self.pair == "fixed" else 1.0) * np.exp(-log_noise)
        return mu

    @property
    def size(self) -> int:
        """How many clients there are."""
        return self.epsilon.size


@dataclass(frozen=True, kw_only=True)
class Cumulants:
    """K(t) = log M(t) of one step with its first two derivatives in t, one entry a client."""

    value: FloatArray
    mean: FloatArray
    variance: FloatArray


def grid_sizes(required: FloatArray) -> IntArray:
    """Node counts rounded up to 2^k or 3 2^k, so that clients can share a block."""
    power = np.exp2(np.ceil(np.log2(required)))
    sizes: IntArray = np.where(0.75 * power >= required, 0.75 * power, power).astype(np.int64)
    return sizes


def blocks(keys: IntArray, weights: IntArray, limit: int) -> Iterator[IntArray]:
    """Indices of clients with equal keys, in runs whose weights add up to about ``limit``."""
    if keys.size == 0:
        return
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order[:1]] - 1))
    for group in np.split(order, starts[1:]):
        count = max(1, limit // int(weights[group[0]]))
        for first in range(0, group.size, count):
            yield group[first : first + count]


def tilt(grid: LossGrid, order: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """K(t), and the masses of e^(tL) over M(t) at the losses and at their mirror images."""
    t = order[:, None]
    upright = grid.log_mass + t * grid.loss
    top = upright.max(axis=1, keepdims=True)
    if grid.log_mirror is None or grid.log_atom is None:
        weight = np.exp(upright - top)
        total = weight.sum(axis=1, keepdims=True)
        return (top + np.log(total))[:, 0], weight / total, None
    mirrored = grid.log_mirror - t * grid.loss
    top = np.maximum(np.maximum(top, mirrored.max(axis=1, keepdims=True)), grid.log_atom[:, None])
    weight, mirror = np.exp(upright - top), np.exp(mirrored - top)
    atom = np.exp(grid.log_atom[:, None] - top)
    total = weight.sum(axis=1, keepdims=True) + mirror.sum(axis=1, keepdims=True) + atom
    return (top + np.log(total))[:, 0], weight / total, mirror / total


def cumulants(clients: Clients, mu: FloatArray, order: FloatArray) -> Cumulants:
    """K, K' and K'' of one step at real t = order.

    Example:
        >>> one = np.ones(1)
        >>> clients = Clients.of(
        ...     "remove", epsilon=one, delta=1e-9 * one, rate=0.5 * one, steps=one
        ... )
        >>> values = cumulants(clients, mu=one, order=one)
        >>> bool(abs(values.value[0] - np.log(0.75 + 0.25 * np.e)) < 1e-12)
        True
    """
    lower, upper = span(clients.pair, rate=clients.rate, mu=mu, order=order, reach=clients.reach)
    turns = frequency(clients.pair, rate=clients.rate, mu=mu, theta=np.zeros_like(mu))
    sizes = grid_sizes((upper - lower) * turns / (2 * math.pi) + 1.0)
    value, mean, variance = np.empty_like(mu), np.empty_like(mu), np.empty_like(mu)
    for i in blocks(sizes, sizes, _BLOCK):
        grid = loss_grid(
            clients.pair,
            rate=clients.rate[i],
            mu=mu[i],
            lower=lower[i],
            upper=upper[i],
            nodes=int(sizes[i[0]]),
        )
        value[i], weight, mirror = tilt(grid, order[i])
        odd = weight if mirror is None else weight - mirror
        even = weight if mirror is None else weight + mirror
        mean[i] = (odd * grid.loss).sum(axis=1)
        if mirror is None:  # centred, as the losses are close together when mu is small
            variance[i] = (weight * (grid.loss - mean[i, None]) ** 2).sum(axis=1)
        else:
            variance[i] = (even * grid.loss**2).sum(axis=1) - mean[i] ** 2
    return Cumulants(value=value, mean=mean, variance=variance)


Residual = Callable[[Clients, FloatArray, Cumulants], tuple[FloatArray, FloatArray]]


def solve_order(
    clients: Clients, mu: FloatArray, start: FloatArray, residual: Residual, tolerance: float
) -> tuple[FloatArray, Cumulants]:
    """The order t at which an increasing residual is 0, by Newton's method in log t in a bracket.

    Args:
        clients: the clients.
        mu: sensitivity over noise of one step.
        start: first guess of t.
        residual: gives the residual and its derivative in log t.
        tolerance: a Newton step in log t smaller than this ends the search.

    Returns:
        The orders at which the residual was last evaluated, and the cumulants there.
    """
    order = start.copy()
    low, high = np.full_like(order, _ORDER_MIN), np.full_like(order, _ORDER_MAX)
    last = np.full_like(order, np.inf)
    value, mean, variance = np.empty_like(mu), np.empty_like(mu), np.empty_like(mu)
    active = np.arange(order.size)
    for _ in range(200):
        some, t = clients.take(active), order[active]
        at = cumulants(some, mu[active], t)
        value[active], mean[active], variance[active] = at.value, at.mean, at.variance
        error, rate = residual(some, t, at)
        low[active] = np.where(error < 0, t, low[active])
        high[active] = np.where(error > 0, t, high[active])
        step = np.clip(-error / np.maximum(rate, 1e-9), -1.5, 1.5)
        moving = np.abs(step) >= tolerance
        proposal = t * np.exp(step)
        bounded = (low[active] > _ORDER_MIN) & (high[active] < _ORDER_MAX)
        stalled = bounded & (np.abs(step) > 0.6 * last[active])
        stalled |= (proposal <= low[active]) | (proposal >= high[active])
        middle = np.sqrt(low[active] * high[active])
        # a bracket this narrow cannot be improved on: the residual jumps at rounding level
        moving &= ~(bounded & (high[active] < low[active] * (1.0 + 1e-9)))
        order[active] = np.where(moving, np.where(stalled, middle, proposal), t)
        last[active] = np.abs(step)
        active = active[moving]
        if active.size == 0:
            break
    return order, Cumulants(value=value, mean=mean, variance=variance)


def saddle_order(
    clients: Clients, mu: FloatArray, start: FloatArray
) -> tuple[FloatArray, Cumulants]:
    """The order at which M(t)^T e^(-epsilon t) / (t (1 + t)) is smallest."""
    return solve_order(clients, mu, start, _saddle_residual, tolerance=0.05)


def _saddle_residual(
    clients: Clients, t: FloatArray, at: Cumulants
) -> tuple[FloatArray, FloatArray]:
    pull = clients.epsilon + 1.0 / t + 1.0 / (1.0 + t)
    width = 1.0 / t**2 + 1.0 / (1.0 + t) ** 2
    # K' grows exponentially where a rare large loss takes over, so compare logarithms
    mean = np.maximum(at.mean, 1e-300)
    error = np.log(clients.steps) + np.log(mean) - np.log(pull)
    return error, t * (at.variance / mean + width / pull)


def saddle_point_log_delta(clients: Clients, t: FloatArray, at: Cumulants) -> FloatArray:
    """Log delta by the saddle-point approximation; t need not be the saddle exactly.

    A guess, not a bound: never used for a promise.
    """
    slope = clients.steps * at.mean - clients.epsilon - 1.0 / t - 1.0 / (1.0 + t)
    width = clients.steps * at.variance + 1.0 / t**2 + 1.0 / (1.0 + t) ** 2
    exponent = clients.steps * at.value - clients.epsilon * t - np.log(t) - np.log1p(t)
    result: FloatArray = exponent - slope**2 / (2 * width) - 0.5 * np.log(2 * math.pi * width)
    return result


def chernoff_log_delta(clients: Clients, t: FloatArray, at: Cumulants) -> FloatArray:
    """An upper bound of log delta, valid for every t > 0; see the module.

    Example:
        >>> one = np.ones(1)
        >>> clients = Clients.of(
        ...     "remove", epsilon=one, delta=1e-5 * one, rate=0.1 * one, steps=50 * one
        ... )
        >>> at = cumulants(clients, mu=0.5 * one, order=9.0 * one)
        >>> round(float(np.exp(chernoff_log_delta(clients, 9.0 * one, at))[0]), 4)
        0.0...
    """
    conversion = t * np.log(t) - (1.0 + t) * np.log1p(t)
    bound: FloatArray = clients.steps * at.value - clients.epsilon * t + conversion
    return bound

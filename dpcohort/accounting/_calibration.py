# SPDX-License-Identifier: Apache-2.0
"""The smallest noise multiplier with which a client keeps its promise, for many clients at once.

:func:`calibrate_noise` finds the optimum of each (epsilon, delta, sampling rate, steps) by the
contour integral below and adds :data:`MARGIN` to it. Two cases have closed forms: all records in
every batch, and a single step. Tiny sampling rates are calibrated by a pessimistic distribution
(:mod:`dpcohort.accounting._rare_losses`). The integral is double precision arithmetic with a
second, finer evaluation as its check, not interval arithmetic; what is deployed is certified by an
independent computation besides (:mod:`dpcohort.accounting._events`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from dpcohort._validate import BoolArray, FloatArray, IntArray, float_array
from dpcohort.accounting._closed_forms import (
    amplified_budget,
    gaussian_delta,
    gaussian_mu,
)
from dpcohort.accounting._composition import TINY_RATE, LossPair
from dpcohort.accounting._contract import float_or_array, promise_columns
from dpcohort.accounting._events import (
    TOLERANCE,
    Event,
    History,
    calibrate_remaining,
    composed_delta,
    excess_delta,
    root_near,
)
from dpcohort.accounting._rare_losses import rare_delta
from dpcohort.accounting._sampler import Neighbours, Pair, Sampler
from dpcohort.accounting._samplers import sampler_of

# delta of a composition as a contour integral of its moment generating function.
#
# With M(t) = E e^(tL) of the privacy loss L of one step, for every t0 > 0,
#
#     delta(epsilon) = 1/(2 pi i) * integral over Re t = t0 of M(t)^T e^(-epsilon t) / (t (t+1)) dt.
#
# It is computed by the trapezoidal rule with step h in the imaginary direction, in which three
# things can go wrong, and all of them only towards a larger delta:
#
# * **Step.** The rule returns the sum over all whole k of delta(epsilon + 2 pi k/h) e^(2 pi k
#   t0/h), terms that are never negative. Moments bound the terms to the left by e^(-2 pi t0/h) and
#   those to the right by M(t1)^T e^(-epsilon t1 - 2 pi (t1 - t0)/h) for every t1 > t0; t0, t1 and h
#   are chosen so that both are 1e-5 of delta and h is as large as it can be.
# * **End.** The integrand is multiplied by e^(s^2 t (t+1)/2), which makes it decay. This is exactly
#   the loss of one more Gaussian mechanism with mu = s, and one more mechanism cannot lower delta.
# * **Atom.** In ``fixed``, the loss is 0 with positive probability and the integrand decays slowly.
#   Paths that never leave the atom contribute nothing to delta, paths that leave it once contribute
#   in closed form, and both are taken out before integrating.
#
# What is left is rounding and the quadrature inside M, which converges faster than any power.
#
# Three parts follow: the loss of one step on a quadrature grid, the moments it gives and what
# bounds delta by them, and the integral.


# The privacy loss of one noisy step, as a quadrature grid: masses p_j at losses l_j.
#
# One step turns neighbouring data sets into a pair of distributions (P, Q) of the noisy sum along
# the direction in which they differ. With L = log(P/Q) under P, everything that composition needs
# is M(t) = E_P[e^(tL)] = sum_j p_j e^(t l_j) for complex t with real part t0 > 0. With x ~ N(0, 1)
# and W(x) = 1 - r + r e^(mu x - mu^2/2), the four pairs are
#
# - ``remove``   Poisson, zero-out, the record is there in P only: M(t) = E[W^(1+t)], mu = 1/z.
# - ``add``      the same pair exchanged: M(t) = E[W^(-t)].
# - ``replace``  Poisson, replace-one, the record points to +1 in P and to -1 in Q:
#   M(t) = E[W(x)^(1+t) W(-x)^(-t)], mu = 1/z. Exchanging P and Q changes nothing.
# - ``fixed``    a batch of fixed size, replace-one, mu = 2/z: the pair whose curve is that of
#   ``remove`` for epsilon >= 0 and its mirror image below, which dominates both directions
#   (Dong, Roth and Su, 2019): M(t) = 1 + E[1{W > 1} (W^(1+t) + W^(-t) - W - 1)].
#
# The integrands are analytic and decay like a Gaussian, so the trapezoidal rule converges faster
# than any power once its step resolves the oscillation of e^(i theta l) and the poles of log W,
# pi/mu off the real line.

# A standard normal has less than 1e-17 of its mass beyond 8.6.
_TAIL = 8.6

# In ``fixed`` the half line x > mu/2 is the image of x = mu/2 + log(1 + e^u); the integrand is of
# order e^(2u) to the left, so that this start leaves 5e-12 of it out.
_SOFT_START = -13.0

# exp overflows above 709; the loss is then linear to the last digit.
_LINEAR = 600.0


#: Of one step, one row a client: losses l_j and logarithms of the masses there; in ``fixed`` also
#: logarithms of the masses at -l_j and, one a client, of the atom at loss 0.
LossGrid = tuple[FloatArray, FloatArray, FloatArray | None, FloatArray | None]


def span(
    pair: Pair, rate: FloatArray, mu: FloatArray, order: FloatArray, reach: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The interval of the integration variable outside which nothing matters.

    Either e^(tL), Re t = order, has no mass there, or P itself has so little that its loss may be
    infinite: more than ``reach`` standard deviations from the nearest centre of P. The latter is
    what keeps a rare and enormous loss from governing the moments.

    Example:
        >>> one = np.ones(1)
        >>> lower, upper = span("remove", one / 10, one, 3 * one, 9 * one)
        >>> float(lower[0]), float(upper[0])
        (-8.6, 10.0)
    """
    tail = np.full_like(mu, _TAIL)
    pushed = mu * (1.0 + order)
    if pair == "remove":
        return -tail, np.minimum(pushed + tail, mu + reach)
    if pair == "fixed":
        return np.full_like(mu, _SOFT_START), np.minimum(pushed + tail, mu + reach)
    # W^(-t) pulls away from where W is large by mu t, but only until W is flat at 1 - r.
    flat = (2.0 + np.log(rate * np.maximum(order, 1.0) / (1.0 - rate))) / mu - mu / 2
    pulled = np.maximum(0.0, np.minimum(mu * order, flat))
    if pair == "add":
        return -np.minimum(tail + pulled, reach), tail
    return -tail, np.minimum(pushed + pulled + tail, mu + reach)


def frequency(pair: Pair, rate: FloatArray, mu: FloatArray, theta: FloatArray) -> FloatArray:
    """How many radians per unit of the integration variable the grid has to resolve.

    The loss turns by at most theta mu (1 + r where two records are in play); the rest is for the
    Gaussian itself (exp(-8^2/2) is rounding) and for the distance pi/mu to the poles of log W.
    """
    swing = mu * (1.0 + rate) if pair == "replace" else mu
    own = 10.0 if pair == "fixed" else 8.0
    return np.asarray(theta * swing + np.maximum(own, 10.0 * mu))


def loss_grid(
    pair: Pair,
    rate: FloatArray,
    mu: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    nodes: int,
    shift: float = 0.0,
) -> LossGrid:
    """The grid of every client on ``nodes`` equal steps from ``lower`` to ``upper``.

    Args:
        pair: which pair of distributions.
        rate: sampling rates r, one a client, below 1.
        mu: sensitivity over noise of one step, one a client.
        lower: start of the integration interval.
        upper: end of it.
        nodes: number of nodes.
        shift: moves all nodes by this share of a step, for an independent second grid.

    Returns:
        The grid; only ``fixed`` has a mirror image and an atom.
    """
    step = (upper - lower) / (nodes - 1)
    u = lower[:, None] + step[:, None] * (np.arange(nodes) + shift)
    log_step = np.log(step / np.sqrt(2.0 * np.pi))[:, None]
    if pair == "fixed":
        soft = np.logaddexp(0.0, u)
        x = mu[:, None] / 2 + soft
        # dx/du = e^u / (1 + e^u)
        base = log_step - 0.5 * x * x + u - soft
        loss = _log_w(rate, mu, x)
        moved = np.exp(base + loss).sum(axis=1) + np.exp(base).sum(axis=1)
        return loss, base + loss, base, np.log(np.maximum(1.0 - moved, 1e-300))
    base = log_step - 0.5 * u * u
    loss = _log_w(rate, mu, u)
    if pair == "remove":
        return loss, base + loss, None, None
    if pair == "add":
        return -loss, base, None, None
    return loss - _log_w(rate, mu, -u), base + loss, None, None


def _log_w(rate: FloatArray, mu: FloatArray, x: FloatArray) -> FloatArray:
    """log(1 - r + r e^y), y = mu x - mu^2/2, with all digits where W is near 1."""
    y = mu[:, None] * (x - mu[:, None] / 2)
    if y.size and y.max() > _LINEAR:
        over = np.maximum(y - _LINEAR, 0.0)
        return np.asarray(np.log1p(rate[:, None] * np.expm1(np.minimum(y, _LINEAR))) + over)
    return np.log1p(rate[:, None] * np.expm1(y))


# Exponential moments of the composed privacy loss, and the bounds they give.
#
# K(t) = log M(t) of one step determines T steps: the moments of the sum of losses are those of T K.
# For every t > 0 (Chernoff; the conversion is that of Canonne, Kamath and Steinke, 2020)
#
#     log delta <= T K(t) - epsilon t + t log t - (1 + t) log(1 + t),
#
# which is always valid and asks for some percent more noise than needed. The saddle-point
# approximation, which divides by the width of the integrand as well, is close enough to start a
# search from.

# Elements of one block of clients: small enough to stay in the cache.
_MOMENT_BLOCK = 20_000

_ORDER_MIN, _ORDER_MAX = 1e-12, 1e18

_LEFT_OUT = 1e-8


class Clients(NamedTuple):
    """What a search is about: one pair of distributions, one row of numbers a client.

    Attributes:
        pair: which pair of distributions one step gives.
        epsilon: promised epsilon.
        delta: promised delta.
        rate: sampling rate, below 1.
        steps: number of steps T.
        log_delta: logarithm of delta.
        reach: standard deviations beyond which P has less than 1e-8 delta/T of its mass. What lies
            beyond is left out and adds at most 1e-8 delta, thousands of times less than the margin.
    """

    pair: Pair
    epsilon: FloatArray
    delta: FloatArray
    rate: FloatArray
    steps: FloatArray
    log_delta: FloatArray
    reach: FloatArray


def clients_of(
    pair: Pair, epsilon: FloatArray, delta: FloatArray, rate: FloatArray, steps: FloatArray
) -> Clients:
    """Clients from their promises."""
    reach = -ndtri(np.maximum(_LEFT_OUT * delta / steps, 1e-300))
    return Clients(pair, epsilon, delta, rate, steps, np.log(delta), reach)


def _some(clients: Clients, index: IntArray) -> Clients:
    """The same for some of the clients."""
    return Clients(clients.pair, *(column[index] for column in clients[1:]))


def _mu(pair: Pair, log_noise: FloatArray) -> FloatArray:
    """Mu of one step at noise multiplier z: 1/z, or 2/z where a batch swaps two records."""
    return np.asarray((2.0 if pair == "fixed" else 1.0) * np.exp(-log_noise))


def grid_sizes(required: FloatArray) -> IntArray:
    """Node counts rounded up to 2^k or 3 2^k, so that clients can share a block."""
    power = np.exp2(np.ceil(np.log2(required)))
    return np.asarray(np.where(0.75 * power >= required, 0.75 * power, power).astype(np.int64))


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
    (loss, log_mass, log_mirror, log_atom), t = grid, order[:, None]
    upright = log_mass + t * loss
    top = upright.max(axis=1, keepdims=True)
    if log_mirror is None or log_atom is None:
        weight = np.exp(upright - top)
        total = weight.sum(axis=1, keepdims=True)
        return (top + np.log(total))[:, 0], weight / total, None
    mirrored = log_mirror - t * loss
    top = np.maximum(np.maximum(top, mirrored.max(axis=1, keepdims=True)), log_atom[:, None])
    weight, mirror = np.exp(upright - top), np.exp(mirrored - top)
    atom = np.exp(log_atom[:, None] - top)
    total = weight.sum(axis=1, keepdims=True) + mirror.sum(axis=1, keepdims=True) + atom
    return (top + np.log(total))[:, 0], weight / total, mirror / total


def cumulants(clients: Clients, mu: FloatArray, order: FloatArray) -> FloatArray:
    """K = log M, K' and K'' of one step at real t = order: three rows, one column a client.

    Example:
        >>> one = np.ones(1)
        >>> clients = clients_of("remove", one, 1e-9 * one, 0.5 * one, one)
        >>> values = cumulants(clients, mu=one, order=one)
        >>> bool(abs(values[0, 0] - np.log(0.75 + 0.25 * np.e)) < 1e-12)
        True
    """
    lower, upper = span(clients.pair, clients.rate, mu, order, clients.reach)
    turns = frequency(clients.pair, clients.rate, mu, np.zeros_like(mu))
    sizes = grid_sizes((upper - lower) * turns / (2 * math.pi) + 1.0)
    found = np.empty((3, mu.size))
    value, mean, variance = found
    for i in blocks(sizes, sizes, _MOMENT_BLOCK):
        grid = loss_grid(clients.pair, clients.rate[i], mu[i], lower[i], upper[i], int(sizes[i[0]]))
        loss, (value[i], weight, mirror) = grid[0], tilt(grid, order[i])
        odd = weight if mirror is None else weight - mirror
        even = weight if mirror is None else weight + mirror
        mean[i] = (odd * loss).sum(axis=1)
        if mirror is None:  # centred, as the losses are close together when mu is small
            variance[i] = (weight * (loss - mean[i, None]) ** 2).sum(axis=1)
        else:
            variance[i] = (even * loss**2).sum(axis=1) - mean[i] ** 2
    return found


Residual = Callable[[Clients, FloatArray, FloatArray], tuple[FloatArray, FloatArray]]


def _solve_order(
    clients: Clients, mu: FloatArray, start: FloatArray, residual: Residual, tolerance: float
) -> tuple[FloatArray, FloatArray]:
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
    found = np.empty((3, mu.size))
    active = np.arange(order.size)
    for _ in range(200):
        some, t = _some(clients, active), order[active]
        at = cumulants(some, mu[active], t)
        found[:, active] = at
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
    return order, found


def saddle_order(
    clients: Clients, mu: FloatArray, start: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The order at which M(t)^T e^(-epsilon t) / (t (1 + t)) is smallest."""
    return _solve_order(clients, mu, start, _saddle_residual, tolerance=0.05)


def _saddle_residual(
    clients: Clients, t: FloatArray, at: FloatArray
) -> tuple[FloatArray, FloatArray]:
    pull = clients.epsilon + 1.0 / t + 1.0 / (1.0 + t)
    width = 1.0 / t**2 + 1.0 / (1.0 + t) ** 2
    # K' grows exponentially where a rare large loss takes over, so compare logarithms
    mean, variance = np.maximum(at[1], 1e-300), at[2]
    error = np.log(clients.steps) + np.log(mean) - np.log(pull)
    return error, t * (variance / mean + width / pull)


def saddle_point_log_delta(clients: Clients, t: FloatArray, at: FloatArray) -> FloatArray:
    """Log delta by the saddle-point approximation; t need not be the saddle exactly.

    A guess, not a bound: never used for a promise.
    """
    value, mean, variance = at
    slope = clients.steps * mean - clients.epsilon - 1.0 / t - 1.0 / (1.0 + t)
    width = clients.steps * variance + 1.0 / t**2 + 1.0 / (1.0 + t) ** 2
    exponent = clients.steps * value - clients.epsilon * t - np.log(t) - np.log1p(t)
    return np.asarray(exponent - slope**2 / (2 * width) - 0.5 * np.log(2 * math.pi * width))


def chernoff_log_delta(clients: Clients, t: FloatArray, at: FloatArray) -> FloatArray:
    """An upper bound of log delta, valid for every t > 0; see the module.

    Example:
        >>> one = np.ones(1)
        >>> clients = clients_of("remove", one, 1e-5 * one, 0.1 * one, 50 * one)
        >>> at = cumulants(clients, mu=0.5 * one, order=9.0 * one)
        >>> round(float(np.exp(chernoff_log_delta(clients, 9.0 * one, at))[0]), 4)
        0.0...
    """
    conversion = t * np.log(t) - (1.0 + t) * np.log1p(t)
    return np.asarray(clients.steps * at[0] - clients.epsilon * t + conversion)


# The integral along the contour.

ComplexArray = NDArray[np.complex128]

# Each of the two aliasing sums is kept below e^-11.5 = 1e-5 of delta.
_ALIAS = 11.5

# A delta this small a part of the promised one is not told from 0.
_NOTHING = 1e-5

# Elements of one block, and the most nodes times points that one client may cost.
_INTEGRAL_BLOCK = 60_000
_COST_LIMIT = 40_000_000

# Nothing below this matters to a product of at most 1e5 factors, and its logarithm is finite.
_TINY = 1e-300


def place_contour(
    clients: Clients, mu: FloatArray, far_order: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The line and the step with which both aliasing sums are 1e-5 of the promised delta.

    With A = log(1/delta) + 11.5 and B = A + T K(t1) - epsilon t1, t0 = t1 A/(A + B) and
    h = 2 pi t1/(A + B) make the two bounds equal; h is largest where T (t1 K'(t1) - K(t1)) = 2A.

    Args:
        clients: the clients.
        mu: sensitivity over noise of one step.
        far_order: a first guess of t1.

    Returns:
        t0, the real part of the line of integration; h, the step along it; and t1, which bounds
        what is aliased from the right.
    """
    far, at = _solve_order(clients, mu, far_order, _far_residual, tolerance=0.1)
    left = _ALIAS - clients.log_delta
    right = left + clients.steps * at[0] - clients.epsilon * far
    # far from the answer delta can be so much smaller than promised that the bound is no help
    total = left + np.maximum(right, 0.1 * left)
    return far * left / total, 2 * math.pi * far / total, far


def _far_residual(clients: Clients, t: FloatArray, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    value, mean, variance = at
    spread = clients.steps * np.maximum(t * mean - value, _TINY)
    error = np.log(spread) - np.log(2.0 * (_ALIAS - clients.log_delta))
    return error, clients.steps * t * t * variance / spread


def contour_log_delta(
    clients: Clients,
    mu: FloatArray,
    order: FloatArray,
    step: FloatArray,
    *,
    points: IntArray,
    smoothing: FloatArray,
    fineness: float = 1.0,
    shift: float = 0.0,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log delta of every client after its T steps.

    Args:
        clients: the clients.
        mu: sensitivity over noise of one step.
        order: t0 of :func:`place_contour`.
        step: its h.
        points: terms of the trapezoidal rule.
        smoothing: s^2, squared mu of the Gaussian mechanism that is added to the composition.
        fineness: factor on the number of nodes inside M.
        shift: shift of these nodes, in steps.

    Returns:
        The logarithm of delta, or of 1e-5 of the promised one where it is less than that; the
        derivative of that in s^2, which is the price of smoothing; and the largest of the last
        quarter of the terms, times their number, over the sum or the promised delta, whichever is
        larger. NaN where the grid would have been too large.

    Example:
        >>> one = np.ones(1)
        >>> clients = clients_of("remove", one, 1e-5 * one, 0.1 * one, 50 * one)
        >>> order, step, _ = place_contour(clients, 0.4 * one, 10.0 * one)
        >>> log_delta, price, tail = contour_log_delta(
        ...     clients, 0.4 * one, order, step, points=np.array([200]), smoothing=0 * one
        ... )
        >>> bool(tail[0] < 1e-9)
        True
    """
    lower, upper = span(clients.pair, clients.rate, mu, order, clients.reach)
    turns = frequency(clients.pair, clients.rate, mu, points * step)
    # more nodes than this is over the limit anyway, and must fit an integer
    required = np.minimum((upper - lower) * turns * fineness / (2 * math.pi) + 2.0, 1e9)
    sizes = grid_sizes(required)
    cost = sizes * points
    log_delta, rate, tail = (np.full(clients.epsilon.size, np.nan) for _ in range(3))
    affordable = np.flatnonzero(cost <= _COST_LIMIT)
    rows = np.ceil(np.sqrt(points[affordable])).astype(np.int64)
    keys = sizes[affordable] * (1 << 24) + points[affordable]
    for group in blocks(keys, sizes[affordable] * rows, _INTEGRAL_BLOCK):
        i = affordable[group]
        grid = loss_grid(
            clients.pair, clients.rate[i], mu[i], lower[i], upper[i], int(sizes[i[0]]), shift
        )
        log_delta[i], rate[i], tail[i] = _integrate(
            _some(clients, i), mu[i], grid, order[i], step[i], points[i[0]], smoothing[i]
        )
    return log_delta, rate, tail


def _integrate(
    clients: Clients,
    mu: FloatArray,
    grid: LossGrid,
    order: FloatArray,
    step: FloatArray,
    points: int,
    smoothing: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log delta, its derivative in s^2 and the size of the last terms, for one block."""
    (loss, _, _, log_atom), (value, weight, mirror) = grid, tilt(grid, order)
    phi = _characteristic(loss, weight, mirror, step, points)
    theta = step[:, None] * np.arange(phi.shape[1])
    steps = clients.steps[:, None]
    t = order[:, None] + 1j * theta
    product = t * (1.0 + t)
    base = (order * (1.0 + order))[:, None]
    with np.errstate(under="ignore"):
        if log_atom is None:
            power = np.exp(steps * np.log(phi + _TINY))
            once = np.full_like(order, -np.inf)
        else:
            power, once = _without_atom(clients, mu, log_atom, phi, value)
        decay = 0.5 * smoothing[:, None] * (product - base) - 1j * theta * clients.epsilon[:, None]
        terms = power * np.exp(decay) * (base / product)
    terms[:, 0] *= 0.5
    scale = clients.steps * value - clients.epsilon * order + 0.5 * smoothing * base[:, 0]
    # a delta that many times the promised one is too large, whatever it is exactly
    excess = np.minimum(scale - clients.log_delta, 600.0)
    scale = np.exp(excess) * step / (math.pi * base[:, 0])
    delta = scale * terms.real.sum(axis=1) + np.exp(np.minimum(once - clients.log_delta, 600.0))
    last = np.abs(terms[:, (3 * terms.shape[1]) // 4 :]).max(axis=1) * terms.shape[1]
    # in units of the promise; below what is aliased anyway there is nothing to know
    known = np.maximum(delta, _NOTHING)
    rate = 0.5 * scale * (terms * product).real.sum(axis=1) / known
    return np.log(known) + clients.log_delta, rate, scale * last / np.maximum(known, 1.0)


def _characteristic(
    loss: FloatArray, weight: FloatArray, mirror: FloatArray | None, step: FloatArray, points: int
) -> ComplexArray:
    """sum_j w_j e^(i k h l_j) for k = 0 .. points - 1, and the conjugate for mirrored masses.

    With k = a + rows b the sum is a product of two matrices of powers, which is what makes it fast:
    the exponentials are computed for two values of k only.
    """
    rows = math.ceil(math.sqrt(points))
    columns = -(-points // rows)
    angle = step[:, None] * loss
    giant = _powers(rows * angle, columns, first=1.0).transpose(0, 2, 1)
    phi = np.matmul(_powers(angle, rows, first=weight), giant)
    if mirror is not None:
        phi += np.conj(np.matmul(_powers(angle, rows, first=mirror), giant))
        # the atom is what is missing from the total of one
        phi += (1.0 - weight.sum(axis=1) - mirror.sum(axis=1))[:, None, None]
    return np.asarray(phi.transpose(0, 2, 1).reshape(loss.shape[0], -1))


def _powers(angle: FloatArray, count: int, *, first: float | FloatArray) -> ComplexArray:
    """First * e^(i k angle) for k = 0 .. count - 1, in the middle axis."""
    powers = np.empty((angle.shape[0], count, angle.shape[1]), dtype=np.complex128)
    powers[:, 0] = first
    if count > 1:
        ratio = np.empty(angle.shape, dtype=np.complex128)
        ratio.real, ratio.imag = np.cos(angle), np.sin(angle)
        for k in range(1, count):
            np.multiply(powers[:, k - 1], ratio, out=powers[:, k])
    return powers


def _without_atom(
    clients: Clients, mu: FloatArray, log_atom: FloatArray, phi: ComplexArray, value: FloatArray
) -> tuple[ComplexArray, FloatArray]:
    """(M/M(t0))^T without the paths that leave the atom at most once, and their log delta."""
    steps = clients.steps
    atom = np.exp(log_atom - value)
    never = np.exp(steps * (log_atom - value))[:, None]
    leave_once = (steps * np.exp((steps - 1.0) * (log_atom - value)))[:, None]
    power = np.exp(steps[:, None] * np.log(phi + _TINY)) - never
    power -= leave_once * (phi - atom[:, None])
    inner, _ = amplified_budget(epsilon=clients.epsilon, delta=0.5, sampling_rate=clients.rate)
    single = np.log(clients.rate) + np.log(gaussian_delta(epsilon=inner, mu=mu))
    return power, np.log(steps) + (steps - 1.0) * log_atom + single


# The smallest noise multiplier of a subsampled composition: start, refine, confirm, fall back.
#
# Everything happens in u = log z, for all clients at once:
#
# 1. **Bracket.** z is at least that of a single step and at most that without sampling; both are
#    closed forms.
# 2. **Start** from the saddle-point approximation, which is cheap.
# 3. **Refine** by the secant method on the contour integral.
# 4. **Confirm** with a second integral on other, finer grids, a little above the root; for zero-out
#    neighbours in both directions.
# 5. **Fall back** on bounds that are always valid where the confirmation fails or the grids would
#    be too large: records that are hardly ever seen. First the Chernoff bound, for all of them at
#    once; then, client by client, the pessimistic privacy loss distribution of
#    :mod:`dpcohort.accounting._events`, which is slow and nearly exact. They give more noise than
#    needed, never less.
#
# Tiny sampling rates (:mod:`dpcohort.accounting._rare_losses`) do not come this way: there the
# distribution is quick, and the search (`_rare_noise`) starts from the noise of a single loss.


# log z is found to this; a client costs at most so many distributions.
_WIDTH = 4e-4
_EVALUATIONS = 14

# At tiny rates: how closely log z is found, and how fast log delta usually falls with it.
_RARE_WIDTH = 1e-3
_RARE_SLOPE = -25.0

# With more steps a distribution is too large or too coarse to be worth its time.
_MOST_CERTIFIED_STEPS = 1e6


def fallback_noise(clients: Clients, *, low: FloatArray, high: FloatArray) -> FloatArray:
    """A log z at which every client keeps its promise, close to the smallest.

    Args:
        clients: the clients; ``remove`` stands for both directions of zero-out.
        low: a lower bound of log z.
        high: a log z that is known to be private.

    Example:
        >>> one = np.ones(1)
        >>> clients = clients_of("remove", one, 1e-5 * one, 0.1 * one, 50 * one)
        >>> found = fallback_noise(clients, low=np.log(one), high=np.log(30 * one))
        >>> bool(2.8 < np.exp(found[0]) < 3.0)
        True
    """
    result = _chernoff_noise(clients, low, high)
    for i in np.flatnonzero(clients.steps <= _MOST_CERTIFIED_STEPS):
        result[i] = _distribution_noise(
            _some(clients, np.array([i])), float(low[i]), float(result[i])
        )
    return result


def _rare_noise(clients: Clients, *, guess: FloatArray, high: FloatArray) -> FloatArray:
    """The same for tiny sampling rates: the secant method on the certified delta.

    Args:
        clients: the clients; ``remove`` stands for both directions of zero-out.
        guess: where to start looking for log z.
        high: a log z that is known to be private.

    Example:
        >>> one = np.ones(1)
        >>> clients = clients_of("remove", one, 1e-5 * one, 1e-5 * one, 1000 * one)
        >>> found = _rare_noise(clients, guess=np.log(0.3 * one), high=np.log(3 * one))
        >>> bool(0.35 < np.exp(found[0]) < 0.36)
        True
    """
    result = np.empty(clients.epsilon.size)
    for i in range(clients.epsilon.size):
        client, most = _some(clients, np.array([i])), float(high[i])
        # of the two directions of zero-out the second is hardly ever the worse one
        found = _rare_search(partial(_first_excess, client), float(guess[i]), most)
        if clients.pair == "remove" and _certified_excess(client, math.exp(found)) > 0:
            found = _rare_search(partial(_certified_excess, client), found, most)
        result[i] = found
    return result


def _rare_search(excess_at: Callable[[float], float], guess: float, high: float) -> float:
    """The secant method; ``high`` stays private throughout."""
    low, slope = -math.inf, _RARE_SLOPE
    here = min(guess, high)
    last: tuple[float, float] | None = None
    for _ in range(_EVALUATIONS):
        excess = excess_at(math.exp(here))
        if excess > 0:
            low = max(low, here)
        else:
            high = min(high, here)
            if excess >= slope * _RARE_WIDTH:
                break
        if high - low <= _RARE_WIDTH:
            break
        if last is not None and abs(here - last[0]) > 0.1 * _RARE_WIDTH:
            slope = min(max((excess - last[1]) / (here - last[0]), -200.0), -2.0)
        last = here, excess
        # aim at the middle of what is accepted
        there = here + min(max(0.5 * _RARE_WIDTH - excess / slope, -0.3), 0.3)
        if not low < there < high:
            there = 0.5 * (max(low, here - 0.3) + high)
        here = there
    return high


def _first_excess(client: Clients, noise: float) -> float:
    shift = float(_mu(client.pair, np.array(math.log(noise))))
    pair = LossPair(kind=client.pair, shift=shift, rate=float(client.rate[0]))
    promised = math.exp(float(client.log_delta[0]))
    parts = [(pair, int(client.steps[0]))]
    delta = rare_delta(parts, float(client.epsilon[0]), expected=promised)
    return math.log(max(delta, 1e-300)) - float(client.log_delta[0])


def _chernoff_noise(clients: Clients, low: FloatArray, high: FloatArray) -> FloatArray:
    low, high = low.copy(), high.copy()
    pairs: tuple[Pair, ...] = ("remove", "add") if clients.pair == "remove" else (clients.pair,)
    orders = {pair: np.ones(clients.epsilon.size) for pair in pairs}
    for _ in range(16):
        middle = 0.5 * (low + high)
        kept = np.ones(clients.epsilon.size, dtype=np.bool_)
        for pair in pairs:
            some = clients._replace(pair=pair)
            orders[pair], at = saddle_order(some, _mu(some.pair, middle), orders[pair])
            kept &= chernoff_log_delta(some, orders[pair], at) <= clients.log_delta
        low, high = np.where(kept, low, middle), np.where(kept, middle, high)
    return high


def _distribution_noise(client: Clients, low: float, high: float) -> float:
    """Regula falsi (Illinois) on the certified delta; ``high`` stays private throughout."""
    below, above = math.inf, -math.inf  # excess of log delta at low and high, not known yet
    for _ in range(_EVALUATIONS):
        if high - low <= _WIDTH:
            break
        middle = 0.5 * (low + high)
        if math.isfinite(below) and math.isfinite(above):
            middle = low + (high - low) * below / (below - above)
            middle = min(max(middle, low + 0.1 * _WIDTH), high - 0.1 * _WIDTH)
        excess = _certified_excess(client, math.exp(middle))
        if excess > 0:
            low, below, above = middle, excess, 0.5 * above
        else:
            high, above, below = middle, excess, 0.5 * below
    return high


def _certified_excess(client: Clients, noise: float) -> float:
    steps = Event.of(
        noise_multiplier=noise,
        sampling_rate=float(client.rate[0]),
        steps=int(client.steps[0]),
        sampler="fixed" if client.pair == "fixed" else "poisson",
        neighbours="zero-out" if client.pair in ("remove", "add") else "replace-one",
    )
    promised = math.exp(float(client.log_delta[0]))
    delta = composed_delta((steps,), float(client.epsilon[0]), TOLERANCE, promised)
    return (math.log(delta) if delta > 0 else -800.0) - float(client.log_delta[0])


# Smoothing may cost this share of z; ten times as much while the root is still far away.
_SMOOTHING_SHARE = 2e-4
_FIRST_SHARE = 2e-3
# A smoothing that turns out to cost this many times its share is chosen again.
_DEAR = 5.0

# A step in log z smaller than this is the last one; the confirmation is made this far above.
_STEP = 5e-5
_ABOVE = 2e-4

# The bracket gives way this much, as the smoothing changes on the way.
_SLACK = 2e-3

# Truncated terms of the integral, relative to the sum.
_TRUNCATED = 1e-5


@dataclass(kw_only=True)
class _State:
    """Where the search of each client stands; everything but ``far_order`` is in log z."""

    log_noise: FloatArray
    slope: FloatArray  # of log delta, negative
    far_order: FloatArray
    smoothing_rate: FloatArray
    smoothing: FloatArray
    points: IntArray


def find_noise(
    clients: Clients, *, low: FloatArray, high: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """The smallest log z for which every client keeps its promise, from a bracket that holds it.

    For the pair ``remove`` the answer also covers ``add``, the other direction of zero-out.

    Args:
        clients: the clients, with sampling rate below 1 and at least one step.
        low: a lower bound of log z.
        high: an upper bound of log z.

    Returns:
        log z, confirmed to be private, and whether the contour integral gave it or a bound did.
    """
    state = _start(clients, low, high)
    solved = _refine(clients, state, low - 1e-3, high + 1e-3)
    log_noise = state.log_noise + _ABOVE
    exact = _confirm(clients, state, log_noise, np.flatnonzero(solved))
    if clients.pair == "remove":
        index = np.flatnonzero(exact)
        some = _some(clients, index)._replace(pair="add")
        worse = index[~_keeps_promise(some, log_noise[index], state.slope[index])]
        if worse.size:
            other = _some(clients, worse)._replace(pair="add")
            log_noise[worse], exact[worse] = find_noise(
                other, low=log_noise[worse], high=high[worse]
            )
    lost = np.flatnonzero(~exact)
    if lost.size:
        log_noise[lost] = fallback_noise(_some(clients, lost), low=low[lost], high=high[lost])
    return np.minimum(log_noise, high), exact


def _start(clients: Clients, low: FloatArray, high: FloatArray) -> _State:
    """The root of the saddle-point approximation."""
    single = gaussian_mu(epsilon=clients.epsilon, delta=np.exp(clients.log_delta))
    order = _gaussian_order(clients.epsilon, single)
    # central limit: T steps at rate r are like one with mu^2 = r^2 T (e^(1/z^2) - 1)
    scale = 2.0 if clients.pair in ("replace", "fixed") else 1.0
    guess = np.log(scale) - 0.5 * np.log(np.log1p(single**2 / (clients.rate**2 * clients.steps)))
    low, high = low.copy(), high.copy()
    u = np.clip(guess + 0.02, low + 0.02 * (high - low), high)
    slope = np.full_like(u, np.nan)
    last_u, last_f = np.full_like(u, np.nan), np.full_like(u, np.nan)
    active = np.arange(u.size)
    for _ in range(60):
        some = _some(clients, active)
        order[active], at = saddle_order(some, _mu(some.pair, u[active]), order[active])
        t = order[active]
        f = saddle_point_log_delta(some, t, at) - some.log_delta
        gaussian_slope = -np.maximum(t * (1.0 + t) * some.steps * at[2], 1.0)
        known = np.where(np.isnan(slope[active]), gaussian_slope, slope[active])
        slope[active] = _secant(u[active], f, last_u[active], last_f[active], known, least=2e-3)
        last_u[active], last_f[active] = u[active], f
        moved = _next(u, f, slope, low, high, active, slack=0.0)
        active = active[moved > 3e-3]
        if active.size == 0:
            break
    return _State(
        log_noise=u,
        slope=np.clip(slope, -60.0, -2.0),
        far_order=2.0 * order,
        smoothing_rate=0.5 * order * (1.0 + order),
        smoothing=np.zeros_like(u),
        points=np.zeros(u.size, dtype=np.int64),
    )


def _gaussian_order(epsilon: FloatArray, mu: FloatArray) -> FloatArray:
    """The saddle of a plain Gaussian mechanism, from which Newton's method starts."""
    centre = epsilon / mu**2 - 0.5
    return np.maximum(0.5 * (centre + np.sqrt(centre**2 + 8.0 / mu**2)), 1e-3)


def _secant(
    u: FloatArray,
    f: FloatArray,
    last_u: FloatArray,
    last_f: FloatArray,
    known: FloatArray,
    *,
    least: float,
) -> FloatArray:
    """The slope between two evaluations, or the known one where they are too close to tell."""
    moved = u - last_u
    usable = np.abs(moved) > least  # False where there is no last evaluation
    slope = known.copy()
    slope[usable] = (f[usable] - last_f[usable]) / moved[usable]
    return np.where((slope < -0.3) & (slope > -300.0), slope, known)


def _next(
    u: FloatArray,
    f: FloatArray,
    slope: FloatArray,
    low: FloatArray,
    high: FloatArray,
    active: IntArray,
    *,
    slack: float,
) -> FloatArray:
    """Tighten the bracket, move u by a secant step inside it, and say how far it moved."""
    here = u[active]
    low[active] = np.where(f > 0, np.maximum(low[active], here - slack), low[active])
    high[active] = np.where(f <= 0, np.minimum(high[active], here + slack), high[active])
    step = np.clip(-f / slope[active], -0.5, 0.5)
    there = here + step
    outside = (there < low[active]) | (there > high[active])
    outside &= np.abs(step) > _STEP
    there = np.where(outside, 0.5 * (low[active] + high[active]), there)
    u[active] = there
    return np.abs(there - here)


def _refine(clients: Clients, state: _State, low: FloatArray, high: FloatArray) -> BoolArray:
    """Secant steps on the contour integral in a bracket; says for which clients they converged.

    Far from the root a coarse smoothing is good enough, and its price is deducted; from the first
    small step on it is the final one, and stays.
    """
    solved, near, final = (np.zeros(clients.epsilon.size, dtype=np.bool_) for _ in range(3))
    last_u, last_f = np.full(clients.epsilon.size, np.nan), np.full(clients.epsilon.size, np.nan)
    active = np.arange(clients.epsilon.size)
    for _ in range(20):
        some = _some(clients, active)
        share = np.where(near[active], _SMOOTHING_SHARE, _FIRST_SHARE)
        fresh = share * -state.slope[active] / state.smoothing_rate[active]
        state.smoothing[active] = np.where(final[active], state.smoothing[active], fresh)
        final[active] |= near[active]
        f = _integral(some, state, active) - some.log_delta
        price = state.smoothing_rate[active] * state.smoothing[active]
        f = np.where(final[active], f, f - price - _SMOOTHING_SHARE * state.slope[active])
        finite = np.isfinite(f)
        active, f = active[finite], f[finite]
        here = state.log_noise[active]
        state.slope[active] = _secant(
            here, f, last_u[active], last_f[active], state.slope[active], least=1e-3
        )
        last_u[active], last_f[active] = here, f
        moved = _next(state.log_noise, f, state.slope, low, high, active, slack=_SLACK)
        near[active] |= moved < 0.02
        solved[active] = final[active] & (moved <= _STEP)
        # Chosen far from the root, a smoothing can cost much more there: choose it again.
        cost = state.smoothing_rate[active] * state.smoothing[active] / -state.slope[active]
        dear = active[solved[active] & (cost > _DEAR * _SMOOTHING_SHARE)]
        solved[dear] = final[dear] = False
        active = active[~solved[active]]
        if active.size == 0:
            break
    return solved


def _integral(clients: Clients, state: _State, index: IntArray) -> FloatArray:
    """Log delta with as many points as the tail needs; the number and the line are remembered."""
    mu = _mu(clients.pair, state.log_noise[index])
    order, step, state.far_order[index] = place_contour(clients, mu, state.far_order[index])
    width = np.sqrt(state.smoothing[index])
    # at this many points smoothing alone has brought the terms to e^-72
    enough = np.maximum(np.ceil(12.0 / (width * step)), 8.0)
    unknown = state.points[index] == 0
    points = state.points[index].astype(np.float64)
    if unknown.any():
        at = cumulants(_some(clients, np.flatnonzero(unknown)), mu[unknown], order[unknown])
        spread = np.sqrt(clients.steps[unknown] * at[2]) + 1e-150
        points[unknown] = 6.0 / (spread * step[unknown])
    points = np.clip(np.ceil(points), 8.0, np.minimum(enough, 1e7))
    log_delta = np.full(clients.epsilon.size, np.nan)
    todo = np.arange(clients.epsilon.size)
    while todo.size:
        found, rate, tail = contour_log_delta(
            _some(clients, todo),
            mu[todo],
            order[todo],
            step[todo],
            points=_rounded(points[todo]),
            smoothing=state.smoothing[index[todo]],
        )
        good = tail <= _TRUNCATED
        log_delta[todo[good]] = found[good]
        known = good & (rate > 1e-6)
        state.smoothing_rate[index[todo[known]]] = rate[known]
        # NaN: over the cost limit; more points will not help
        more = ~good & (points[todo] < enough[todo]) & np.isfinite(tail)
        todo = todo[more]
        points[todo] = np.minimum(2.0 * points[todo], enough[todo])
    state.points[index] = points.astype(np.int64)
    return log_delta


def _rounded(points: FloatArray) -> IntArray:
    """Rows times columns of the matrix product that computes this many points."""
    rows = np.ceil(np.sqrt(points))
    return np.asarray(rows * np.ceil(points / rows), dtype=np.int64)


def _confirm(clients: Clients, state: _State, log_noise: FloatArray, index: IntArray) -> BoolArray:
    """Whether delta is within the promise on a second set of grids, all of them finer.

    Where it is not by little, ``log_noise`` is raised by what is missing and looked at again.
    """
    confirmed = np.zeros(clients.epsilon.size, dtype=np.bool_)
    for _ in range(3):
        some = _some(clients, index)
        mu = _mu(some.pair, log_noise[index])
        order, step, _ = place_contour(some, mu, state.far_order[index])
        found, _, tail = contour_log_delta(
            some,
            mu,
            order,
            0.8 * step,
            points=_rounded(1.5 * state.points[index].astype(np.float64)),
            smoothing=state.smoothing[index],
            fineness=1.2,
            shift=0.5,
        )
        log_delta = np.where(tail <= 10 * _TRUNCATED, found, np.inf)
        confirmed[index] = log_delta <= some.log_delta
        missing = (log_delta - some.log_delta) / -state.slope[index]
        again = ~confirmed[index] & (missing < 1e-3)
        log_noise[index[again]] += missing[again] + 0.5 * _ABOVE
        index = index[again]
        if index.size == 0:
            break
    return confirmed


def _keeps_promise(clients: Clients, log_noise: FloatArray, slope: FloatArray) -> BoolArray:
    """Whether the pair ``add``, at noise found for ``remove``, is within the promise too."""
    # a step removes at most log(1/(1-r)) this way round, so delta is 0 from T times that on
    keeps = clients.epsilon >= -clients.steps * np.log1p(-clients.rate)
    index = np.flatnonzero(~keeps)
    some = _some(clients, index)
    mu = _mu(some.pair, log_noise[index])
    single = gaussian_mu(epsilon=some.epsilon, delta=np.exp(some.log_delta))
    order, at = saddle_order(some, mu, _gaussian_order(some.epsilon, single))
    bounded = chernoff_log_delta(some, order, at) <= some.log_delta
    keeps[index] = bounded
    index, order = index[~bounded], order[~bounded]
    some = _some(clients, index)
    rate = 0.5 * order * (1.0 + order)
    state = _State(
        log_noise=log_noise[index],
        slope=slope[index],
        far_order=2.0 * order,
        smoothing_rate=rate,
        smoothing=_SMOOTHING_SHARE * -slope[index] / rate,
        points=np.zeros(index.size, dtype=np.int64),
    )
    log_delta = _integral(some, state, np.arange(index.size))
    keeps[index] = log_delta <= some.log_delta  # False for NaN
    return keeps


#: Share by which every noise multiplier is raised above the one found. It covers the rounding of
#: the calibration many times over, and most of the pessimism of a certificate.
MARGIN = 3e-4

#: No noise multiplier is smaller than this, however loose the budget.
SMALLEST_NOISE = 0.02

#: A larger epsilon promises nothing that noise could be calibrated to.
LARGEST_EPSILON = 1e6

# Beyond this many steps rounding, 1e-16 a step, would no longer be small against the margin; the
# noise is then that without sampling.
_MOST_STEPS = 1e10

# Up to this many steps a tiny rate is calibrated by the distribution itself.
_MOST_RARE_STEPS = 1e6


def calibrate_noise(
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str | Sampler = "poisson",
    neighbours: str | None = None,
) -> Any:
    """The smallest noise multiplier z for (epsilon, delta) after so many steps.

    Never below the optimum, and above it by less than 0.2 percent wherever the contour integral
    applies; ``benchmarks/calibration.py`` measures both. Where it does not, a pessimistic
    distribution stands in: quickly at tiny rates, where it is within 1 percent
    (``benchmarks/tiny_rates.py``), in up to a second elsewhere; and for more than a million steps
    the Chernoff bound, which is generous. Identical clients are computed once.

    Args:
        epsilon: promised epsilon, above 0.
        delta: promised delta, between 0 and 1.
        sampling_rate: r, share of the records in a batch, in (0, 1].
        steps: T, number of noisy steps over the whole training, a whole number.
        sampler: ``poisson``, ``fixed`` for batches of fixed size without replacement, or a sampler.
        neighbours: ``zero-out`` or ``replace-one``; by default the sampler's own.

    Returns:
        z, at least :data:`SMALLEST_NOISE`; 0 where there are no steps.

    Raises:
        InputError: a value is out of its range, or the combination has no proof.

    Example:
        >>> z = calibrate_noise(epsilon=1.0, delta=1e-5, sampling_rate=0.1, steps=[0, 1, 100])
        >>> [round(float(value), 2) for value in z]
        [0.0, 1.26, 3.94]
    """
    drawn_by = sampler_of(sampler)
    relation = drawn_by.neighbours(neighbours)
    columns = _validated(epsilon, delta, sampling_rate, steps)
    rows, inverse = _distinct(np.stack([column.ravel() for column in columns], axis=1))
    pair = drawn_by.integrand(relation)
    if pair is None:
        noise = np.array([_certified_noise(drawn_by, relation, *row) for row in rows.tolist()])
    else:
        noise = _noise(pair, *rows.T)
    return float_or_array(noise[inverse].reshape(columns[0].shape))


@lru_cache(maxsize=1 << 12)
def _certified_noise(
    sampler: Sampler, neighbours: Neighbours, eps: float, delta: float, rate: float, steps: float
) -> float:
    """Z of one client by its certificate: for samplers without a contour integral."""
    if steps == 0:
        return 0.0
    promise: Any = {"epsilon": eps, "delta": delta}
    more = Event.of(
        noise_multiplier=1.0, sampling_rate=rate, steps=int(steps),
        sampler=sampler, neighbours=neighbours,
    )  # fmt: skip

    def excess(log_noise: float) -> float:
        return excess_delta(History(), more, math.exp(log_noise), **promise)

    # The search begins at the noise of Poisson sampling at this rate.
    guess = float(calibrate_noise(**promise, sampling_rate=rate, steps=steps))
    z = root_near(excess, math.log(guess)) or calibrate_remaining(
        History(), **promise, sampling_rate=rate, steps=more.steps,
        sampler=sampler, neighbours=neighbours,
    )  # fmt: skip
    z = max(z, SMALLEST_NOISE)
    while excess(math.log(z)) > 0:
        z *= 1.0 + MARGIN
    return z * (1.0 + MARGIN)


def clt_noise_multiplier(
    *, epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike, steps: ArrayLike
) -> Any:
    """The noise multiplier in the limit of many steps: for ranking clients only, NOT private.

    z = 1/sqrt(log(1 + mu^2/(r^2 T))) with mu of :func:`gaussian_mu`
    (Dong, Roth and Su, 2019). Always too small for a finite number of steps: use it to compare
    millions of clients, and :func:`calibrate_noise` for the noise that is added.

    Args:
        epsilon: promised epsilon, above 0.
        delta: promised delta, between 0 and 1.
        sampling_rate: r, share of the records in a batch, in (0, 1].
        steps: T, a whole number.

    Returns:
        z for Poisson sampling and zero-out neighbours; 0 where there are no steps.

    Example:
        >>> budget = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 100}
        >>> clt_noise_multiplier(**budget) < calibrate_noise(**budget)
        True
    """
    eps, target, rate, count = _validated(epsilon, delta, sampling_rate, steps)
    mu = gaussian_mu(epsilon=eps, delta=target)
    with np.errstate(divide="ignore"):
        return float_or_array(1.0 / np.sqrt(np.log1p((mu / rate) ** 2 / count)))


def _validated(
    epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike, steps: ArrayLike
) -> tuple[FloatArray, ...]:
    epsilon = float_array("epsilon", epsilon, above=0, at_most=LARGEST_EPSILON)
    return promise_columns(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps)


def _distinct(rows: FloatArray) -> tuple[FloatArray, np.ndarray]:
    """The distinct rows, and for each row the position of its twin among them."""
    order = np.lexsort(rows.T)
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    inverse = np.empty(len(rows), dtype=np.int64)
    inverse[order] = np.cumsum(new) - 1
    return rows[order[new]], inverse


def _noise(
    pair: Pair, eps: FloatArray, delta: FloatArray, rate: FloatArray, steps: FloatArray
) -> FloatArray:
    """Z of distinct clients, by the cheapest way that is exact for each."""
    # Without sampling T Gaussian mechanisms are one, with mu sqrt(T); sampling only lowers delta.
    width = 1.0 if pair == "remove" else 2.0
    noise = width * np.sqrt(steps) / gaussian_mu(epsilon=eps, delta=delta)
    # With no noise at all the record is still unseen with probability (1-r)^T.
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = -np.expm1(steps * np.log1p(-rate))
    open_ = (steps > 0) & (rate < 1) & (noise > SMALLEST_NOISE)
    noise[open_ & (delta >= seen)] = 0.0
    open_ &= delta < seen
    once = np.flatnonzero(open_ & (steps == 1))
    noise[once] = _single_step(pair, eps[once], delta[once], rate[once], noise[once])
    open_ &= (steps > 1) & (steps <= _MOST_STEPS)
    tiny = (rate < TINY_RATE) & (steps <= _MOST_RARE_STEPS)
    rare, many = np.flatnonzero(open_ & tiny), np.flatnonzero(open_ & ~tiny)
    for some, search in ((rare, _rare_steps), (many, _many_steps)):
        if some.size:
            columns = (column[some] for column in (eps, delta, rate, steps))
            noise[some] = search(clients_of(pair, *columns), noise[some])
    noise = np.maximum(noise, SMALLEST_NOISE) * (1.0 + MARGIN)
    return np.where(steps > 0, noise, 0.0)


def _many_steps(clients: Clients, unsampled: FloatArray) -> FloatArray:
    eps, delta, rate, steps = clients.epsilon, clients.delta, clients.rate, clients.steps
    # Basic composition: T steps of (epsilon/T, delta/T) each. Close where a record is rarely seen.
    rare = np.flatnonzero(rate * steps < 1.0)
    high = unsampled.copy()
    shares = eps[rare] / steps[rare], delta[rare] / steps[rare]
    basic = _single_step(clients.pair, *shares, rate[rare], high[rare])
    high[rare] = np.minimum(high[rare], basic)
    # One step needs less noise than many, and zero-out less than replace-one.
    first = _amplified_noise("fixed" if clients.pair == "fixed" else "remove", eps, delta, rate)
    low = np.clip(first, 0.5 * SMALLEST_NOISE, 0.999 * high)
    return np.exp(find_noise(clients, low=np.log(low), high=np.log(high))[0])


def _rare_steps(clients: Clients, unsampled: FloatArray) -> FloatArray:
    """Tiny rates, at which one large loss in all the steps decides, or the sum of very many."""
    eps, delta, rate, steps = clients.epsilon, clients.delta, clients.rate, clients.steps
    alone = _single_step(clients.pair, eps, delta / steps, rate, unsampled)
    many = clt_noise_multiplier(epsilon=eps, delta=delta, sampling_rate=rate, steps=steps)
    guess = np.maximum(alone, many if clients.pair == "remove" else 2 * many)
    return np.exp(_rare_noise(clients, guess=np.log(guess), high=np.log(unsampled)))


def _single_step(
    pair: Pair, eps: FloatArray, delta: FloatArray, rate: FloatArray, unsampled: FloatArray
) -> FloatArray:
    if pair != "replace":
        return _amplified_noise(pair, eps, delta, rate)
    low, high = np.log(_amplified_noise("remove", eps, delta, rate)), np.log(unsampled)
    for _ in range(48):
        middle = 0.5 * (low + high)
        kept = _replace_delta(eps, rate, np.exp(-middle)) <= delta
        low, high = np.where(kept, low, middle), np.where(kept, middle, high)
    return np.exp(high)


def _amplified_noise(
    pair: Pair, eps: FloatArray, delta: FloatArray, rate: FloatArray
) -> FloatArray:
    """One step, ``remove`` or ``fixed``: delta = r delta_Gauss(e'; mu), Lemma 1 with equality."""
    inner, share = amplified_budget(epsilon=eps, delta=delta, sampling_rate=rate)
    width = 2.0 if pair == "fixed" else 1.0
    # where delta >= r no noise is needed, and this bound is just small
    mu = gaussian_mu(epsilon=inner, delta=np.minimum(share, 1.0 - 1e-9))
    return np.asarray(width / mu)


def _replace_delta(eps: FloatArray, rate: FloatArray, mu: FloatArray) -> FloatArray:
    """One step, ``replace``: P - e^eps Q is positive above one point, the root of a quadratic."""
    # r e^(-mu^2/2) (y - e^eps / y) = (1 - r) (e^eps - 1), y = e^(mu x); in logarithms
    log_rest = np.log1p(-rate) + eps + np.log(-np.expm1(-eps))
    log_edge = np.log(rate) - 0.5 * mu**2
    root = 0.5 * np.logaddexp(2 * log_rest, 2 * log_edge + np.log(4.0) + eps)
    x = (np.logaddexp(log_rest, root) - np.log(2.0) - log_edge) / mu
    with np.errstate(under="ignore"):
        seen = rate * ndtr(mu - x)
        unseen = np.exp(np.log(rate) + eps + log_ndtr(-mu - x))
        unsampled = np.exp(log_rest + log_ndtr(-x))
    # the last digits that cancel are counted against us
    return np.asarray(seen - unseen - unsampled + 1e-14 * seen)

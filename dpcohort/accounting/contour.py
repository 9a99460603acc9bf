# SPDX-License-Identifier: Apache-2.0
"""delta of a composition as a contour integral of its moment generating function.

With M(t) = E e^(tL) of the privacy loss L of one step, for every t0 > 0,

    delta(epsilon) = 1/(2 pi i) * integral over Re t = t0 of M(t)^T e^(-epsilon t) / (t (t+1)) dt.

It is computed by the trapezoidal rule with step h in the imaginary direction, in which three things
can go wrong, and all of them only towards a larger delta:

* **Step.** The rule returns the sum over all whole k of delta(epsilon + 2 pi k/h) e^(2 pi k t0/h),
  terms that are never negative. Moments bound the terms to the left by e^(-2 pi t0/h) and those to
  the right by M(t1)^T e^(-epsilon t1 - 2 pi (t1 - t0)/h) for every t1 > t0; t0, t1 and h are chosen
  so that both are 1e-5 of delta and h is as large as it can be.
* **End.** The integrand is multiplied by e^(s^2 t (t+1)/2), which makes it decay. This is exactly
  the loss of one more Gaussian mechanism with mu = s, and one more mechanism cannot lower delta.
* **Atom.** In ``fixed``, the loss is 0 with positive probability and the integrand decays slowly.
  Paths that never leave the atom contribute nothing to delta, paths that leave it once contribute
  in closed form, and both are taken out before integrating.

What is left is rounding and the quadrature inside M, which converges faster than any power.

Three parts follow: the loss of one step on a quadrature grid, the moments it gives and what bounds
delta by them, and the integral.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.gaussian import gaussian_delta, ndtri
from dpcohort.accounting.paper import amplified_budget

__all__ = [
    "Clients",
    "Contour",
    "LossGrid",
    "Pair",
    "blocks",
    "chernoff_log_delta",
    "contour_log_delta",
    "cumulants",
    "frequency",
    "grid_sizes",
    "loss_grid",
    "place_contour",
    "saddle_order",
    "saddle_point_log_delta",
    "solve_order",
    "span",
    "tilt",
]


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

Pair = Literal["remove", "add", "replace", "fixed"]

# A standard normal has less than 1e-17 of its mass beyond 8.6.
_TAIL = 8.6

# In ``fixed`` the half line x > mu/2 is the image of x = mu/2 + log(1 + e^u); the integrand is of
# order e^(2u) to the left, so that this start leaves 5e-12 of it out.
_SOFT_START = -13.0

# exp overflows above 709; the loss is then linear to the last digit.
_LINEAR = 600.0


@dataclass(frozen=True, kw_only=True)
class LossGrid:
    """Masses and losses of one step, one row a client.

    Attributes:
        loss: l_j.
        log_mass: logarithms of the masses at l_j.
        log_mirror: logarithms of the masses at -l_j, or None where there are none.
        log_atom: logarithms of the mass at loss 0, one a client, or None.
    """

    loss: FloatArray
    log_mass: FloatArray
    log_mirror: FloatArray | None = None
    log_atom: FloatArray | None = None


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
        return _fixed_grid(rate, mu, u, log_step)
    base = log_step - 0.5 * u * u
    loss = _log_w(rate, mu, u)
    if pair == "remove":
        return LossGrid(log_mass=base + loss, loss=loss)
    if pair == "add":
        return LossGrid(log_mass=base, loss=-loss)
    return LossGrid(log_mass=base + loss, loss=loss - _log_w(rate, mu, -u))


def _fixed_grid(rate: FloatArray, mu: FloatArray, u: FloatArray, log_step: FloatArray) -> LossGrid:
    soft = np.logaddexp(0.0, u)
    x = mu[:, None] / 2 + soft
    # dx/du = e^u / (1 + e^u)
    base = log_step - 0.5 * x * x + u - soft
    loss = _log_w(rate, mu, x)
    moved = np.exp(base + loss).sum(axis=1) + np.exp(base).sum(axis=1)
    return LossGrid(
        loss=loss,
        log_mass=base + loss,
        log_mirror=base,
        log_atom=np.log(np.maximum(1.0 - moved, 1e-300)),
    )


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


@dataclass(frozen=True, kw_only=True)
class Clients:
    """What a search is about: one pair of distributions, one row of numbers a client.

    Attributes:
        pair: which pair of distributions one step gives.
        epsilon: promised epsilon.
        delta: promised delta.
        log_delta: its logarithm.
        rate: sampling rate, below 1.
        steps: number of steps T.
        reach: standard deviations beyond which P has less than 1e-8 delta/T of its mass. What lies
            beyond is left out and adds at most 1e-8 delta, thousands of times less than the margin.
    """

    pair: Pair
    epsilon: FloatArray
    delta: FloatArray
    log_delta: FloatArray
    rate: FloatArray
    steps: FloatArray
    reach: FloatArray

    @classmethod
    def of(
        cls,
        pair: Pair,
        epsilon: FloatArray,
        delta: FloatArray,
        rate: FloatArray,
        steps: FloatArray,
    ) -> Clients:
        """Clients from their promises."""
        return cls(
            pair=pair,
            epsilon=epsilon,
            delta=delta,
            log_delta=np.log(delta),
            rate=rate,
            steps=steps,
            reach=-ndtri(np.maximum(_LEFT_OUT * delta / steps, 1e-300)),
        )

    def take(self, index: IntArray) -> Clients:
        """The same for some of the clients."""
        columns = {name: column[index] for name, column in vars(self).items() if name != "pair"}
        return Clients(pair=self.pair, **columns)

    def facing(self, pair: Pair) -> Clients:
        """The same clients under another pair of distributions."""
        return replace(self, pair=pair)

    def shift(self, log_noise: FloatArray) -> FloatArray:
        """Mu of one step at noise multiplier z: 1/z, or 2/z where a batch swaps two records."""
        return np.asarray((2.0 if self.pair == "fixed" else 1.0) * np.exp(-log_noise))

    @property
    def size(self) -> int:
        """How many clients there are."""
        return self.epsilon.size


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


def cumulants(clients: Clients, mu: FloatArray, order: FloatArray) -> FloatArray:
    """K = log M, K' and K'' of one step at real t = order: three rows, one column a client.

    Example:
        >>> one = np.ones(1)
        >>> clients = Clients.of(
        ...     "remove", epsilon=one, delta=1e-9 * one, rate=0.5 * one, steps=one
        ... )
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
        value[i], weight, mirror = tilt(grid, order[i])
        odd = weight if mirror is None else weight - mirror
        even = weight if mirror is None else weight + mirror
        mean[i] = (odd * grid.loss).sum(axis=1)
        if mirror is None:  # centred, as the losses are close together when mu is small
            variance[i] = (weight * (grid.loss - mean[i, None]) ** 2).sum(axis=1)
        else:
            variance[i] = (even * grid.loss**2).sum(axis=1) - mean[i] ** 2
    return found


Residual = Callable[[Clients, FloatArray, FloatArray], tuple[FloatArray, FloatArray]]


def solve_order(
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
        some, t = clients.take(active), order[active]
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
    return solve_order(clients, mu, start, _saddle_residual, tolerance=0.05)


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
        >>> clients = Clients.of(
        ...     "remove", epsilon=one, delta=1e-5 * one, rate=0.1 * one, steps=50 * one
        ... )
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


@dataclass(frozen=True, kw_only=True)
class Contour:
    """Where to integrate, one entry a client.

    Attributes:
        order: t0, the real part of the line of integration.
        step: h, the step along it.
        far_order: t1, which bounds what is aliased from the right.
    """

    order: FloatArray
    step: FloatArray
    far_order: FloatArray

    def take(self, index: IntArray) -> Contour:
        """The same for some of the clients."""
        return Contour(**{name: column[index] for name, column in vars(self).items()})


def place_contour(clients: Clients, mu: FloatArray, far_order: FloatArray) -> Contour:
    """The line and the step with which both aliasing sums are 1e-5 of the promised delta.

    With A = log(1/delta) + 11.5 and B = A + T K(t1) - epsilon t1, t0 = t1 A/(A + B) and
    h = 2 pi t1/(A + B) make the two bounds equal; h is largest where T (t1 K'(t1) - K(t1)) = 2A.

    Args:
        clients: the clients.
        mu: sensitivity over noise of one step.
        far_order: a first guess of t1.
    """
    far, at = solve_order(clients, mu, far_order, _far_residual, tolerance=0.1)
    left = _ALIAS - clients.log_delta
    right = left + clients.steps * at[0] - clients.epsilon * far
    # far from the answer delta can be so much smaller than promised that the bound is no help
    total = left + np.maximum(right, 0.1 * left)
    return Contour(order=far * left / total, step=2 * math.pi * far / total, far_order=far)


def _far_residual(clients: Clients, t: FloatArray, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    value, mean, variance = at
    spread = clients.steps * np.maximum(t * mean - value, _TINY)
    error = np.log(spread) - np.log(2.0 * (_ALIAS - clients.log_delta))
    return error, clients.steps * t * t * variance / spread


def contour_log_delta(
    clients: Clients,
    mu: FloatArray,
    contour: Contour,
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
        contour: from :func:`place_contour`.
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
        >>> clients = Clients.of(
        ...     "remove", epsilon=one, delta=1e-5 * one, rate=0.1 * one, steps=50 * one
        ... )
        >>> contour = place_contour(clients, 0.4 * one, 10.0 * one)
        >>> log_delta, price, tail = contour_log_delta(
        ...     clients, 0.4 * one, contour, points=np.array([200]), smoothing=0 * one
        ... )
        >>> bool(tail[0] < 1e-9)
        True
    """
    lower, upper = span(clients.pair, clients.rate, mu, contour.order, clients.reach)
    turns = frequency(clients.pair, clients.rate, mu, points * contour.step)
    # more nodes than this is over the limit anyway, and must fit an integer
    required = np.minimum((upper - lower) * turns * fineness / (2 * math.pi) + 2.0, 1e9)
    sizes = grid_sizes(required)
    cost = sizes * points
    log_delta, rate, tail = (np.full(clients.size, np.nan) for _ in range(3))
    affordable = np.flatnonzero(cost <= _COST_LIMIT)
    rows = np.ceil(np.sqrt(points[affordable])).astype(np.int64)
    keys = sizes[affordable] * (1 << 24) + points[affordable]
    for group in blocks(keys, sizes[affordable] * rows, _INTEGRAL_BLOCK):
        i = affordable[group]
        grid = loss_grid(
            clients.pair, clients.rate[i], mu[i], lower[i], upper[i], int(sizes[i[0]]), shift
        )
        log_delta[i], rate[i], tail[i] = _integrate(
            clients.take(i), mu[i], grid, contour.take(i), points[i[0]], smoothing[i]
        )
    return log_delta, rate, tail


def _integrate(
    clients: Clients,
    mu: FloatArray,
    grid: LossGrid,
    contour: Contour,
    points: int,
    smoothing: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log delta, its derivative in s^2 and the size of the last terms, for one block."""
    order, step = contour.order, contour.step
    value, weight, mirror = tilt(grid, order)
    phi = _characteristic(grid.loss, weight, mirror, step, points)
    theta = step[:, None] * np.arange(phi.shape[1])
    steps = clients.steps[:, None]
    t = order[:, None] + 1j * theta
    product = t * (1.0 + t)
    base = (order * (1.0 + order))[:, None]
    with np.errstate(under="ignore"):
        if grid.log_atom is None:
            power = np.exp(steps * np.log(phi + _TINY))
            once = np.full_like(order, -np.inf)
        else:
            power, once = _without_atom(clients, mu, grid.log_atom, phi, value)
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
    loss: FloatArray,
    weight: FloatArray,
    mirror: FloatArray | None,
    step: FloatArray,
    points: int,
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

# SPDX-License-Identifier: Apache-2.0
"""delta of a composition as a contour integral of its moment generating function.

With M(t) of one step (:mod:`dpcohort.accounting.loss_grid`), for every t0 > 0,

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
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.gaussian import gaussian_delta
from dpcohort.accounting.loss_grid import LossGrid, frequency, loss_grid, span
from dpcohort.accounting.moments import (
    Clients,
    Cumulants,
    blocks,
    grid_sizes,
    solve_order,
    tilt,
)
from dpcohort.accounting.paper import amplified_budget

__all__ = ["Contour", "Integral", "contour_log_delta", "place_contour"]

ComplexArray = NDArray[np.complex128]

# Each of the two aliasing sums is kept below e^-11.5 = 1e-5 of delta.
_ALIAS = 11.5

# A delta this small a part of the promised one is not told from 0.
_NOTHING = 1e-5

# Elements of one block, and the most nodes times points that one client may cost.
_BLOCK = 60_000
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


@dataclass(frozen=True, kw_only=True)
class Integral:
    """The result of the integration, one entry a client.

    Attributes:
        log_delta: logarithm of delta, or of 1e-5 of the promised one where it is less than that;
            NaN where the grid would have been too large.
        smoothing_rate: derivative of log delta in s^2, the price of smoothing.
        tail: largest of the last quarter of the terms, times their number, over the sum or the
            promised delta, whichever is larger.
        cost: nodes times points.
    """

    log_delta: FloatArray
    smoothing_rate: FloatArray
    tail: FloatArray
    cost: IntArray


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
    right = left + clients.steps * at.value - clients.epsilon * far
    # far from the answer delta can be so much smaller than promised that the bound is no help
    total = left + np.maximum(right, 0.1 * left)
    return Contour(order=far * left / total, step=2 * math.pi * far / total, far_order=far)


def _far_residual(clients: Clients, t: FloatArray, at: Cumulants) -> tuple[FloatArray, FloatArray]:
    spread = clients.steps * np.maximum(t * at.mean - at.value, _TINY)
    error = np.log(spread) - np.log(2.0 * (_ALIAS - clients.log_delta))
    return error, clients.steps * t * t * at.variance / spread


def contour_log_delta(
    clients: Clients,
    mu: FloatArray,
    contour: Contour,
    *,
    points: IntArray,
    smoothing: FloatArray,
    fineness: float = 1.0,
    shift: float = 0.0,
) -> Integral:
    """Log delta of every client after its T steps.

    Args:
        clients: the clients.
        mu: sensitivity over noise of one step.
        contour: from :func:`place_contour`.
        points: terms of the trapezoidal rule.
        smoothing: s^2, squared mu of the Gaussian mechanism that is added to the composition.
        fineness: factor on the number of nodes inside M.
        shift: shift of these nodes, in steps.

    Example:
        >>> one = np.ones(1)
        >>> clients = Clients.of(
        ...     "remove", epsilon=one, delta=1e-5 * one, rate=0.1 * one, steps=50 * one
        ... )
        >>> contour = place_contour(clients, 0.4 * one, 10.0 * one)
        >>> result = contour_log_delta(
        ...     clients, 0.4 * one, contour, points=np.array([200]), smoothing=0 * one
        ... )
        >>> bool(result.tail[0] < 1e-9)
        True
    """
    lower, upper = span(
        clients.pair, rate=clients.rate, mu=mu, order=contour.order, reach=clients.reach
    )
    theta = points * contour.step
    turns = frequency(clients.pair, rate=clients.rate, mu=mu, theta=theta)
    # more nodes than this is over the limit anyway, and must fit an integer
    required = np.minimum((upper - lower) * turns * fineness / (2 * math.pi) + 2.0, 1e9)
    sizes = grid_sizes(required)
    cost = sizes * points
    log_delta, rate, tail = (np.full(clients.size, np.nan) for _ in range(3))
    affordable = np.flatnonzero(cost <= _COST_LIMIT)
    rows = np.ceil(np.sqrt(points[affordable])).astype(np.int64)
    keys = sizes[affordable] * (1 << 24) + points[affordable]
    for group in blocks(keys, sizes[affordable] * rows, _BLOCK):
        i = affordable[group]
        grid = loss_grid(
            clients.pair,
            rate=clients.rate[i],
            mu=mu[i],
            lower=lower[i],
            upper=upper[i],
            nodes=int(sizes[i[0]]),
            shift=shift,
        )
        log_delta[i], rate[i], tail[i] = _integrate(
            clients.take(i),
            mu[i],
            grid,
            contour.order[i],
            contour.step[i],
            points[i[0]],
            smoothing[i],
        )
    return Integral(log_delta=log_delta, smoothing_rate=rate, tail=tail, cost=cost)


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
    result: ComplexArray = phi.transpose(0, 2, 1).reshape(loss.shape[0], -1)
    return result


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

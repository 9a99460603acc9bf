# SPDX-License-Identifier: Apache-2.0
"""The privacy loss of one noisy step, as a quadrature grid: masses p_j at losses l_j.

One step turns neighbouring data sets into a pair of distributions (P, Q) of the noisy sum along the
direction in which they differ. With L = log(P/Q) under P, everything that composition needs is

    M(t) = E_P[e^(tL)] = sum_j p_j e^(t l_j)

for complex t with real part t0 > 0. With x ~ N(0, 1) and W(x) = 1 - r + r e^(mu x - mu^2/2), the
four pairs are

* ``remove``   Poisson, zero-out, the record is there in P only: M(t) = E[W^(1+t)], mu = 1/z.
* ``add``      the same pair exchanged: M(t) = E[W^(-t)].
* ``replace``  Poisson, replace-one, the record points to +1 in P and to -1 in Q:
  M(t) = E[W(x)^(1+t) W(-x)^(-t)], mu = 1/z. Exchanging P and Q changes nothing.
* ``fixed``    a batch of fixed size, replace-one, mu = 2/z: the pair whose curve is that of
  ``remove`` for epsilon >= 0 and its mirror image below, which dominates both directions
  (Dong, Roth and Su, 2019): M(t) = 1 + E[1{W > 1} (W^(1+t) + W^(-t) - W - 1)].

The integrands are analytic and decay like a Gaussian, so the trapezoidal rule converges faster than
any power once its step resolves the oscillation of e^(i theta l) and the poles of log W, pi/mu off
the real line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpcohort._validate import FloatArray

__all__ = ["LossGrid", "Pair", "frequency", "loss_grid", "span"]

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
    pair: Pair, *, rate: FloatArray, mu: FloatArray, order: FloatArray, reach: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The interval of the integration variable outside which nothing matters.

    Either e^(tL), Re t = order, has no mass there, or P itself has so little that its loss may be
    infinite: more than ``reach`` standard deviations from the nearest centre of P. The latter is
    what keeps a rare and enormous loss from governing the moments.

    Example:
        >>> one = np.ones(1)
        >>> lower, upper = span("remove", rate=one / 10, mu=one, order=3 * one, reach=9 * one)
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


def frequency(pair: Pair, *, rate: FloatArray, mu: FloatArray, theta: FloatArray) -> FloatArray:
    """How many radians per unit of the integration variable the grid has to resolve.

    The loss turns by at most theta mu (1 + r where two records are in play); the rest is for the
    Gaussian itself (exp(-8^2/2) is rounding) and for the distance pi/mu to the poles of log W.
    """
    swing = mu * (1.0 + rate) if pair == "replace" else mu
    own = 10.0 if pair == "fixed" else 8.0
    radians: FloatArray = theta * swing + np.maximum(own, 10.0 * mu)
    return radians


def loss_grid(
    pair: Pair,
    *,
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
        grown: FloatArray = np.log1p(rate[:, None] * np.expm1(np.minimum(y, _LINEAR))) + over
        return grown
    plain: FloatArray = np.log1p(rate[:, None] * np.expm1(y))
    return plain

# SPDX-License-Identifier: Apache-2.0
"""Closed forms: the Gaussian mechanism (delta from mu and back), and the noise the paper prints.

mu = sensitivity / noise standard deviation, so mu = 1/z for a noise multiplier z. The exact curve
(Balle and Wang, 2018) is

    delta(epsilon; mu) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

Written with Mills' ratio m(x) = Phi(-x)/phi(x), a = epsilon/mu - mu/2 and b = epsilon/mu + mu/2, it
is phi(a) (m(a) - m(b)), in which nothing overflows. Its derivative in mu is phi(a), a log-concave
function, so log(delta) and log(1 - delta) are concave in mu and Newton's method cannot go astray.
T uses with the same mu are one use with mu sqrt(T).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, erfinv, ndtr, ndtri

from dpcohort._validate import FloatArray, float_array
from dpcohort.accounting._contract import broadcast_fields, float_or_array, promise_columns

_ROOT_HALF = math.sqrt(0.5)
_MILLS_AT_ZERO = math.sqrt(math.pi / 2)
_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)

# Below this mu the difference m(a) - m(b) loses digits, and a short Gauss rule of its derivative
# does not; above it the difference is good to 1e-12.
_NARROW = 0.1
_GAUSS_POINTS, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(4)

# Up to this mu, rounding eps/mu - mu/2 moves delta by 2e-12 of itself at most.
_WIDE = 100.0

# phi(39) is below the smallest double.
_FAR = 39.0

# Results are moved to the private side by these shares, several times what rounding can do; the
# tests hold both ends against 400-digit arithmetic.
_MU_MARGIN = 1e-11
_DELTA_MARGIN = 1e-10


def gaussian_delta(*, epsilon: ArrayLike, mu: ArrayLike) -> Any:
    """The smallest delta for which a Gaussian mechanism is (epsilon, delta)-DP.

    Exact up to rounding, and rounded up (by 1e-10 of itself) so that it is never too small.

    Args:
        epsilon: at least 0.
        mu: sensitivity over noise standard deviation, at least 0.

    Returns:
        delta in [0, 1]; 0 only for mu = 0.

    Example:
        >>> round(gaussian_delta(epsilon=1.0, mu=1.0), 6)
        0.126937
    """
    eps, width = broadcast_fields(
        epsilon=float_array("epsilon", epsilon, at_least=0), mu=float_array("mu", mu, at_least=0)
    )
    delta = np.zeros(eps.shape)
    some = width > 0
    delta[some] = _delta(eps[some], width[some])
    return float_or_array(delta)


def gaussian_mu(*, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The largest mu for which a Gaussian mechanism is (epsilon, delta)-DP.

    The inverse of :func:`gaussian_delta`; the noise multiplier of a single Gaussian mechanism of
    sensitivity 1 is 1/mu. Rounded down (by 1e-11 of itself), so never above the exact value.

    Args:
        epsilon: at least 0.
        delta: between 0 and 1, both excluded.

    Returns:
        mu, above 0.

    Example:
        >>> round(gaussian_mu(epsilon=1.0, delta=1e-5), 6)
        0.268051
    """
    eps, target = broadcast_fields(
        epsilon=float_array("epsilon", epsilon, at_least=0),
        delta=float_array("delta", delta, above=0, below=1),
    )
    return float_or_array(_largest_mu(eps.ravel(), target.ravel()).reshape(eps.shape))


def _largest_mu(eps: FloatArray, target: FloatArray) -> FloatArray:
    mu = _lower_bound(eps, target)
    with np.errstate(over="ignore"):  # epsilon near the largest double
        exact = (eps == 0) | ~np.isfinite(mu)
    mu[~np.isfinite(mu)] = math.sqrt(np.finfo(np.float64).max)
    active = np.flatnonzero(~exact)
    # delta above one half is solved through 1 - delta, which keeps its digits near 1.
    high = target > 0.5
    goal = np.where(high, np.log1p(-target), np.log(target))
    for _ in range(60):
        if active.size == 0:
            break
        log_value, rate = _log_tail(eps[active], mu[active], high[active])
        step = (goal[active] - log_value) / rate
        # 1 - delta starts below its root and overshoots once; more than a doubling is never due.
        step = np.clip(step, -0.5 * mu[active], 4.0 * mu[active])
        mu[active] += step
        active = active[np.abs(step) > 1e-13 * mu[active]]
    return np.asarray(mu * (1.0 - _MU_MARGIN))


def _lower_bound(eps: FloatArray, target: FloatArray) -> FloatArray:
    """The better of two lower bounds of mu: drop the subtracted term, or put epsilon = 0."""
    quantile = -ndtri(target)
    with np.errstate(over="ignore"):
        root = np.sqrt(quantile * quantile + 2.0 * eps)
    # root - quantile, without cancellation when the quantile is positive
    without_second = np.where(
        quantile > 0, 2.0 * eps / (root + np.abs(quantile)), root + np.abs(quantile)
    )
    # The second is 2 sqrt(2) erfinv(target), and erfinv(t) < t up to one half.
    second = (target > 0.5) | (without_second < 3.0 * target)
    if second.any():
        at_zero = 2.0 * math.sqrt(2.0) * erfinv(target[second])
        without_second[second] = np.maximum(without_second[second], at_zero)
    return np.asarray(without_second)


def _log_tail(eps: FloatArray, mu: FloatArray, high: np.ndarray) -> tuple[FloatArray, FloatArray]:
    """log(delta), or log(1 - delta) where ``high``, with its derivative in mu."""
    value, rate = _log_delta(eps, mu)
    if high.any():
        a, b = eps[high] / mu[high] - mu[high] / 2, eps[high] / mu[high] + mu[high] / 2
        density = np.exp(-0.5 * a * a - _LOG_ROOT_TWO_PI)
        rest = ndtr(a) + density * _mills(b)
        value[high], rate[high] = np.log(rest), -density / rest
    return value, rate


def _log_delta(eps: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    """log(delta) and its derivative in mu, which is phi(a)/delta."""
    centre, half = eps / mu, mu / 2
    a, b = centre - half, centre + half
    gap = np.empty_like(a)
    narrow = mu < _NARROW
    wide = ~narrow & (a >= 0)
    left = ~narrow & (a < 0)
    gap[wide] = _mills(a[wide]) - _mills(b[wide])
    x = centre[narrow, None] + half[narrow, None] * _GAUSS_POINTS
    gap[narrow] = half[narrow] * ((1.0 - x * _mills(x)) @ _GAUSS_WEIGHTS)
    log_density = -0.5 * a * a - _LOG_ROOT_TWO_PI
    with np.errstate(divide="ignore"):
        value = log_density + np.log(gap, where=~left, out=np.zeros_like(gap))
    rate = np.divide(1.0, gap, where=~left, out=np.zeros_like(gap))
    density = np.exp(log_density[left])
    plain = ndtr(-a[left]) - density * _mills(b[left])
    value[left], rate[left] = np.log(plain), density / plain
    return value, rate


def _delta(eps: FloatArray, mu: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        # eps/mu - mu/2 is rounded; where both are large that is more than the margin
        lower = np.maximum(eps - 2.0**-50 * (eps + mu * mu), 0.0)
        eps = np.where(mu > _WIDE, lower, eps)
        a = eps / mu - mu / 2
    near = a < _FAR
    delta = np.zeros_like(a)
    with np.errstate(under="ignore"):
        delta[near] = np.exp(_log_delta(eps[near], mu[near])[0])
    smallest = np.finfo(np.float64).smallest_subnormal
    return np.asarray(np.clip(delta * (1.0 + _DELTA_MARGIN), smallest, 1.0))


def _mills(x: FloatArray) -> FloatArray:
    return np.asarray(_MILLS_AT_ZERO * erfcx(_ROOT_HALF * x))


# The paper's noise exactly as printed: Lemmas 1 and 2, V_k and the noise of Algorithm 1.
#
# These formulas are a record of the paper (arXiv 2602.22633), not a proof of privacy. Three steps
# of the printed argument do not hold in general:
#
# * Lemma 1 is applied to the whole composition, which analyses one batch used in every step;
#   Algorithm 1 draws a fresh batch in each.
# * Neighbours that "differ in one entry" move the mean of a batch of fixed size by up to 2C/B; the
#   variance is computed for C/B.
# * Lemma 2 is stated for every epsilon > 0 and fails for large ones, where the mean privacy loss
#   alone exceeds epsilon.
#
# For most budgets the noise is far more than needed, for some it is too little. What a client
# really gets is decided by the certificate of its (noise multiplier, sampling rate, steps), never
# by these formulas. Where the values are certified and where they are not:
# :mod:`dpcohort.accounting._events`.


def amplified_budget(
    *, epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike
) -> tuple[Any, Any]:
    """Lemma 1: the budget that a mechanism may spend on a batch, for (epsilon, delta) on the data.

    epsilon' = log(1 + (e^epsilon - 1)/r) and delta' = delta/r. It holds for a single use; the paper
    also applies it to a composition, which has no proof. delta' is returned as printed, above 1
    where delta > r.

    Args:
        epsilon: budget on the data, above 0.
        delta: budget on the data, between 0 and 1.
        sampling_rate: r, share of the records in a batch, in (0, 1].

    Returns:
        (epsilon', delta').

    Example:
        >>> inner, delta = amplified_budget(epsilon=1.0, delta=1e-5, sampling_rate=0.1)
        >>> round(inner, 4), delta
        (2.9005, 0.0001)
    """
    eps, target, rate = promise_columns(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate)
    return float_or_array(_amplified(eps, rate)), float_or_array(target / rate)


def noise_level(
    *, epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike, size: ArrayLike
) -> Any:
    """V_k of Equation (7): noise variance of one step of one draw, in units of the clip squared.

    V_k = 8 log(e + r e'/delta) / (|M_k|^2 r^2 e'^2) with e' of Lemma 1. Not proved to be private,
    see the module; the certificate decides.

    Args:
        epsilon: above 0.
        delta: between 0 and 1.
        sampling_rate: r_k, in (0, 1].
        size: |M_k|, number of records, above 0.

    Returns:
        V_k, above 0.

    Example:
        >>> value = noise_level(epsilon=1.0, delta=1e-5, sampling_rate=0.1, size=500)
        >>> round(value, 6)
        0.003908
    """
    eps, target, rate, records = promise_columns(
        epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, size=size
    )
    return float_or_array((_unit_multiplier(eps, target, rate) / (records * rate)) ** 2)


def paper_noise_multiplier(
    *, epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike, steps: ArrayLike
) -> Any:
    """The noise of Equation (6) as a noise multiplier: z = sigma_k B/C = sqrt(8 T log(.)) / e'.

    With B = r |M_k| the size cancels: z depends on the budget, the rate and T = T_k T^l only. Not
    proved to be private, see the module; the certificate decides.

    Args:
        epsilon: above 0.
        delta: between 0 and 1.
        sampling_rate: r_k, in (0, 1].
        steps: T = T_k T^l, a whole number, at least 0.

    Returns:
        z, 0 where there are no steps.

    Example:
        >>> budget = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1}
        >>> round(paper_noise_multiplier(**budget, steps=50), 3)
        22.103
    """
    eps, target, rate, count = promise_columns(
        epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps
    )
    return float_or_array(_unit_multiplier(eps, target, rate) * np.sqrt(count))


def _unit_multiplier(eps: FloatArray, delta: FloatArray, rate: FloatArray) -> FloatArray:
    """The multiplier of one step, sqrt(8 log(e + r e'/delta)) / e'."""
    inner = _amplified(eps, rate)
    # log(e + r e'/delta), where the quotient may not be a double
    log_term = np.logaddexp(1.0, np.log(rate * inner) - np.log(delta))
    return np.asarray(np.sqrt(8.0 * log_term) / inner)


def _amplified(eps: FloatArray, rate: FloatArray) -> FloatArray:
    """log(1 + (e^eps - 1)/r) without overflow or cancellation."""
    small = np.log1p(np.expm1(np.minimum(eps, 1.0)) / rate)
    # the same with e^eps/r taken out, for eps above 1
    large = eps - np.log(rate) + np.log1p((rate - 1.0) * np.exp(-eps))
    return np.asarray(np.where(eps < 1.0, small, large))

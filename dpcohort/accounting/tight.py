# SPDX-License-Identifier: Apache-2.0
"""The smallest noise multiplier with which a client keeps its promise, for many clients at once.

:func:`calibrate_noise` finds the optimum of each (epsilon, delta, sampling rate, steps) by the
contour integral of :mod:`dpcohort.accounting.contour` and adds :data:`MARGIN` to it. Two cases have
closed forms: all records in every batch, and a single step. Tiny sampling rates are calibrated by a
pessimistic distribution (:mod:`dpcohort.accounting.rare_losses`). The integral is double precision
arithmetic with a second, finer evaluation as its check, not interval arithmetic; what is deployed
is certified by an independent computation besides (:mod:`dpcohort.accounting.certify`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array
from dpcohort.accounting.composition import TINY_RATE
from dpcohort.accounting.contour import Clients, Pair
from dpcohort.accounting.contract import (
    broadcast_fields,
    float_or_array,
    resolve_neighbours,
    whole_steps,
)
from dpcohort.accounting.gaussian import gaussian_mu, log_ndtr, ndtr
from dpcohort.accounting.noise_search import find_noise, rare_noise
from dpcohort.accounting.paper import amplified_budget

__all__ = ["MARGIN", "SMALLEST_NOISE", "calibrate_noise", "clt_noise_multiplier"]

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
    sampler: str = "poisson",
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
        sampler: ``poisson``, or ``fixed`` for batches of fixed size without replacement.
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
    relation = resolve_neighbours(sampler, neighbours)
    pair: Pair = "remove"
    if relation == "replace-one":
        pair = "fixed" if sampler == "fixed" else "replace"
    columns = _validated(epsilon, delta, sampling_rate, steps)
    rows, inverse = _distinct(np.stack([column.ravel() for column in columns], axis=1))
    return float_or_array(_noise(pair, *rows.T)[inverse].reshape(columns[0].shape))


def clt_noise_multiplier(
    *, epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike, steps: ArrayLike
) -> Any:
    """The noise multiplier in the limit of many steps: for ranking clients only, NOT private.

    z = 1/sqrt(log(1 + mu^2/(r^2 T))) with mu of :func:`dpcohort.accounting.gaussian.gaussian_mu`
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
    return broadcast_fields(
        epsilon=float_array("epsilon", epsilon, above=0, at_most=LARGEST_EPSILON),
        delta=float_array("delta", delta, above=0, below=1),
        sampling_rate=float_array("sampling_rate", sampling_rate, above=0, at_most=1),
        steps=whole_steps(steps),
    )


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
            noise[some] = search(Clients.of(pair, *columns), noise[some])
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
    return np.exp(rare_noise(clients, guess=np.log(guess), high=np.log(unsampled)))


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

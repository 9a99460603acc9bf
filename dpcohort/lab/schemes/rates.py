# SPDX-License-Identifier: Apache-2.0
"""Sampling rates from budgets under one noise multiplier: the largest rate that certifies.

With z given, a client's epsilon grows with its sampling rate; the strict ones are seen less often.
A rate counts only if the privacy loss distribution certifies it; the search starts from the rate
that Renyi moments allow and goes up to 0.1 %. A client whose rate would be below
:data:`SMALLEST_RATE` sits out.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array, number
from dpcohort.accounting import calibrate_noise
from dpcohort.accounting.certify import certify_epsilon
from dpcohort.errors import InputError
from dpcohort.lab.schemes.renyi import renyi_rate

__all__ = ["SMALLEST_RATE", "certified_rates", "common_noise", "largest_rates"]

#: A record seen less often than this teaches nothing, and its accounting is slow.
SMALLEST_RATE = 1e-3

_GRID = np.geomspace(0.005, 1.0, 8)  # rates between which the common noise is interpolated
_STRETCH = 1.25
_ACCURACY = 0.999
_STEP_BACK = 0.999


def largest_rates(
    *, noise_multiplier: float, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike
) -> FloatArray:
    """The largest Poisson rates with which clients keep their budgets at this noise.

    Args:
        noise_multiplier: z, the same for all.
        epsilon: promised.
        delta: promised.
        steps: noisy steps of each client; a client without steps gets rate 1.

    Returns:
        Rates in (0, 1], or 0 where even :data:`SMALLEST_RATE` does not certify.

    Example:
        >>> rates = largest_rates(noise_multiplier=2.0, epsilon=[0.5, 2.0], delta=1e-5, steps=50)
        >>> bool(0.02 < rates[0] < rates[1] < 0.25)
        True
    """
    z = number("noise_multiplier", noise_multiplier, above=0)
    eps, target, count = np.broadcast_arrays(
        float_array("epsilon", epsilon, above=0),
        float_array("delta", delta, above=0, below=1),
        float_array("steps", steps, at_least=0),
    )
    rates = [
        _largest_rate(z, float(e), float(d), int(n))
        for e, d, n in zip(eps.ravel(), target.ravel(), count.ravel(), strict=True)
    ]
    return np.array(rates).reshape(eps.shape)


@lru_cache(maxsize=1 << 14)
def _largest_rate(noise: float, epsilon: float, delta: float, steps: int) -> float:
    """From the rate that Renyi moments allow upwards, as far as the certificate holds."""
    if steps == 0 or _certifies(1.0, noise, epsilon, delta, steps):
        return 1.0
    safe = renyi_rate(noise_multiplier=noise, epsilon=epsilon, delta=delta, steps=steps)
    good = float(np.clip(safe, SMALLEST_RATE, 1.0))
    if not _certifies(good, noise, epsilon, delta, steps):
        return 0.0
    bad = min(_STRETCH * good, 1.0)
    while bad < 1 and _certifies(bad, noise, epsilon, delta, steps):
        good, bad = bad, min(_STRETCH * bad, 1.0)
    while good < _ACCURACY * bad:
        middle = float(np.sqrt(good * bad))
        holds = _certifies(middle, noise, epsilon, delta, steps)
        good, bad = (middle, bad) if holds else (good, middle)
    return good


def certified_rates(
    rates: ArrayLike,
    *,
    noise_multiplier: float,
    epsilon: ArrayLike,
    delta: ArrayLike,
    steps: ArrayLike,
) -> FloatArray:
    """The rates, each lowered by steps of 0.1 % until its epsilon certifies.

    Example:
        >>> float(certified_rates([0.9], noise_multiplier=2.0, epsilon=1e-3, delta=1e-5,
        ...                       steps=50)[0])
        0.0
    """
    found = np.array(float_array("rates", rates, at_least=0, at_most=1), dtype=np.float64)
    eps, target, count = (
        np.broadcast_to(np.asarray(column, dtype=np.float64), found.shape)
        for column in (epsilon, delta, steps)
    )
    for row in range(found.size):
        share = 1 - _STEP_BACK
        while found[row] > 0 and not _certifies(
            found[row], noise_multiplier, eps[row], target[row], count[row]
        ):
            # The first steps are small: usually the certificate's own rounding is all that lacks.
            found[row] *= 1 - share
            share = min(2 * share, 0.5)
            if found[row] < SMALLEST_RATE:
                found[row] = 0.0
    return found


def _certifies(rate: float, noise: float, epsilon: float, delta: float, steps: float) -> bool:
    spent = certify_epsilon(
        method="pld",
        delta=float(delta),
        noise_multiplier=noise,
        sampling_rate=float(rate),
        steps=float(steps),
    )
    return bool(spent <= epsilon)


def common_noise(
    *,
    mean_rate: float,
    weights: ArrayLike,
    epsilon: ArrayLike,
    delta: ArrayLike,
    steps: ArrayLike,
) -> float:
    """The noise multiplier at which the weighted mean of the largest rates is about ``mean_rate``.

    Interpolated between a few rates: the noise is only chosen here, its rates are certified later.

    Args:
        mean_rate: wanted mean rate, in (0, 1).
        weights: of the clients in the mean, e.g. their sizes.
        epsilon: promised.
        delta: promised.
        steps: noisy steps of each client.

    Example:
        >>> z = common_noise(mean_rate=0.1, weights=[1, 1], epsilon=[0.5, 2.0], delta=1e-5,
        ...                  steps=50)
        >>> rates = largest_rates(noise_multiplier=z, epsilon=[0.5, 2.0], delta=1e-5, steps=50)
        >>> bool(abs(rates.mean() - 0.1) < 0.01)
        True
    """
    wanted = number("mean_rate", mean_rate, above=0, at_most=1)
    share = float_array("weights", weights, at_least=0)
    if share.sum() <= 0:
        raise InputError.because("no client has a budget, so there is no noise to calibrate.")
    share = share / share.sum()
    eps, target, count = np.broadcast_arrays(
        *(np.asarray(column, dtype=np.float64) for column in (epsilon, delta, steps))
    )
    noise = calibrate_noise(
        epsilon=eps[:, None],
        delta=target[:, None],
        sampling_rate=_GRID[None, :],
        steps=count[:, None],
    )
    logs = np.log(np.maximum.accumulate(noise, axis=1))
    low, high = float(logs.min()), float(logs.max())
    for _ in range(40):
        middle = 0.5 * (low + high)
        rates = [float(np.exp(np.interp(middle, row, np.log(_GRID), left=-np.inf))) for row in logs]
        if float(share @ np.array(rates)) < wanted:
            low = middle
        else:
            high = middle
    return float(np.exp(high))

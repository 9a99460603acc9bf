# SPDX-License-Identifier: Apache-2.0
"""Renyi accounting of the Poisson-sampled Gaussian at whole orders, as published schemes count.

At order a the moment of one step is (Mironov, Talwar and Zhang, 2019, arXiv 1908.10530)

    A(a) = sum_j C(a, j) (1-q)^(a-j) q^j e^{j(j-1)/(2 z^2)},

T steps have T ln A(a)/(a-1), and epsilon is the least over the orders of
T ln A(a)/(a-1) + ln((a-1)/a) - (ln delta + ln a)/(a-1) (Canonne, Kamath and Steinke, 2020). Safe,
and looser than a privacy loss distribution; kept to show what published noise claims.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from dpcohort._validate import FloatArray
from dpcohort.errors import InputError

__all__ = ["renyi_epsilon", "renyi_noise", "renyi_rate"]

_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)
_ACCURACY = 0.999  # as close to the optimum as the published searches go
_LARGEST_NOISE = 1e6


@lru_cache(maxsize=1 << 14)
def renyi_epsilon(*, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """The epsilon that Renyi moments give.

    Example:
        >>> round(renyi_epsilon(noise_multiplier=4.0, rate=0.1, steps=100, delta=1e-5), 2)
        1.08
    """
    if rate == 0 or steps == 0:
        return 0.0
    best = math.inf
    for order in _ORDERS:
        moment = _log_moment(order, noise_multiplier, rate) * steps / (order - 1)
        rest = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        best = min(best, moment + rest)
    return max(best, 0.0)


def _log_moment(order: int, noise: float, rate: float) -> float:
    j = np.arange(order + 1, dtype=np.float64)
    if rate == 1:
        return order * (order - 1) / (2 * noise**2)
    choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms = choose + j * math.log(rate) + (order - j) * math.log1p(-rate)
    return float(logsumexp(terms + j * (j - 1) / (2 * noise**2)))


def renyi_noise(
    *, epsilon: FloatArray, delta: FloatArray, sampling_rate: float, steps: int
) -> FloatArray:
    """The least noise multipliers by Renyi moments, to 0.1 %.

    Example:
        >>> found = renyi_noise(epsilon=np.array([1.0]), delta=np.array([1e-5]),
        ...                     sampling_rate=0.1, steps=100)
        >>> bool(4.1 < found[0] < 4.4)
        True
    """
    found = []
    for eps, target in zip(epsilon.tolist(), delta.tolist(), strict=True):
        low, high = 0.1, 0.2
        while _spent(high, sampling_rate, steps, target) > eps:
            low, high = high, 2 * high
            if high > _LARGEST_NOISE:
                raise InputError(
                    "epsilon", given=eps, allowed="large enough for some noise below 1000000"
                )
        while low / high < _ACCURACY:
            middle = math.sqrt(low * high)
            good = _spent(middle, sampling_rate, steps, target) <= eps
            low, high = (low, middle) if good else (middle, high)
        found.append(high)
    return np.array(found)


def renyi_rate(*, noise_multiplier: float, epsilon: float, delta: float, steps: int) -> float:
    """The largest rate by Renyi moments, to 0.1 %; 1 if no sampling is needed.

    Example:
        >>> 0.09 < renyi_rate(noise_multiplier=4.3, epsilon=1.0, delta=1e-5, steps=100) < 0.12
        True
    """
    if _spent(noise_multiplier, 1.0, steps, delta) <= epsilon:
        return 1.0
    low, high = 1e-9, 1.0
    if _spent(noise_multiplier, low, steps, delta) > epsilon:
        return 0.0
    while low / high < _ACCURACY:
        middle = math.sqrt(low * high)
        good = _spent(noise_multiplier, middle, steps, delta) <= epsilon
        low, high = (middle, high) if good else (low, middle)
    return low


def _spent(noise: float, rate: float, steps: int, delta: float) -> float:
    return renyi_epsilon(noise_multiplier=noise, rate=rate, steps=steps, delta=delta)

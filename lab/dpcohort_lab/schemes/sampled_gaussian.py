# SPDX-License-Identifier: Apache-2.0
"""Noise and sampling rates of the sampled Gaussian from budgets, certified before they are used.

*Noise.* With the rate given, each client's own least noise multiplier that certifies.

*Rates.* With one noise z given, a client's epsilon grows with its sampling rate; the strict ones
are seen less often. A rate counts only if the privacy loss distribution certifies it; the search
starts from the rate that Renyi moments allow and goes up to 0.1 %. A client whose rate would be
below :data:`SMALLEST_RATE` sits out.

*Renyi moments.* As published schemes count them, at whole orders: moments of the Poisson-sampled
Gaussian by Mironov, Talwar and Zhang (2019, arXiv 1908.10530), turned into epsilon as by Canonne,
Kamath and Steinke (2020), both by dp-accounting. Safe, and looser than a privacy loss
distribution; kept to show what published noise claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from dpcohort.accounting import Contract, calibrate_noise, certify_epsilon, deploy_noise
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort_lab.checks import FloatArray, IntArray

#: A record seen less often than this teaches nothing, and its accounting is slow.
SMALLEST_RATE = 1e-3

_GRID = np.geomspace(0.005, 1.0, 8)  # rates between which the common noise is interpolated
_STRETCH = 1.25
_ACCURACY = 0.999  # as close to the optimum as the published searches go
_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)
_LARGEST_NOISE, _LEAST_RATE = 1e6, 1e-9  # where the searches by Renyi moments end
_ROUNDING = 1e-12  # of the moments' sums; a claim must not fall below them


def certified_noise(
    population: Population, *, rates: ArrayLike, steps: ArrayLike, neighbours: str = "zero-out"
) -> FloatArray:
    """The least noise multipliers z_k that certify, for Poisson batches.

    Args:
        population: budgets.
        rates: sampling rate of each client, 1 for all its records.
        steps: noisy steps of each client.
        neighbours: ``zero-out`` or ``replace-one``.

    Returns:
        z_k; 0 for public clients, NaN for clients without steps, so that they cannot be used.

    Example:
        >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
        >>> certified_noise(people, rates=0.1, steps=[100, 0]).round(2)
        array([3.94,  nan])
    """
    noise, _, _ = deploy_noise(
        population,
        calibrated_epsilon=population.epsilon,
        sampling_rates=np.broadcast_to(rates, len(population)),
        steps=np.broadcast_to(steps, len(population)),
        contract=Contract.of("tight", sampler="poisson", neighbours=neighbours),
    )
    return noise


def sampled_epsilon(
    population: Population,
    noise: FloatArray,
    rates: ArrayLike,
    steps: IntArray,
    *,
    sampler: str = "poisson",
    neighbours: str | None = None,
) -> FloatArray:
    """Certified epsilon of sampled Gaussian steps; NaN for public clients.

    A rate of 0, or no steps, is a client that is never looked at: it spends nothing.

    Example:
        >>> people = Population.from_arrays(sizes=[90], epsilon=1.0, delta=1e-5)
        >>> found = sampled_epsilon(people, np.array([8.0]), 0.2, np.array([100]))
        >>> bool(0.9 < found[0] < 1.0)
        True
    """
    found = np.where(population.public, np.nan, 0.0)
    own = np.broadcast_to(np.asarray(rates, dtype=np.float64), len(population))
    for k in np.flatnonzero(~population.public & (own > 0) & (steps > 0)).tolist():
        found[k] = certify_epsilon(
            method="pld",
            delta=float(population.delta[k]),
            noise_multiplier=float(noise[k]),
            sampling_rate=float(own[k]),
            steps=float(steps[k]),
            sampler=sampler,
            neighbours=neighbours,
        )
    return found


@lru_cache(maxsize=1 << 14)
def largest_rate(*, noise_multiplier: float, epsilon: float, delta: float, steps: float) -> float:
    """The largest Poisson rate with which a client keeps its budget at this noise.

    Args:
        noise_multiplier: z.
        epsilon: promised.
        delta: promised.
        steps: noisy steps; a client without steps gets rate 1.

    Returns:
        A rate in (0, 1], or 0 where even :data:`SMALLEST_RATE` does not certify.

    Example:
        >>> strict, mild = (
        ...     largest_rate(noise_multiplier=2.0, epsilon=epsilon, delta=1e-5, steps=50)
        ...     for epsilon in (0.5, 2.0)
        ... )
        >>> 0.02 < strict < mild < 0.25
        True
    """

    def keeps(rate: float) -> bool:
        return _certifies(rate, noise_multiplier, epsilon, delta, steps)

    if steps == 0 or keeps(1.0):
        return 1.0
    # From the rate that Renyi moments allow upwards, as far as the certificate holds.
    safe = renyi_rate(
        noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta, steps=int(steps)
    )
    good = min(max(safe, SMALLEST_RATE), 1.0)
    if not keeps(good):
        return 0.0
    bad = min(_STRETCH * good, 1.0)
    while bad < 1 and keeps(bad):
        good, bad = bad, min(_STRETCH * bad, 1.0)
    return _closed_in(good, bad, keeps)


def _closed_in(good: float, bad: float, holds: Callable[[float], bool]) -> float:
    """The good end of a bracket around where something stops to hold, closed to 0.1 %."""
    while min(good, bad) / max(good, bad) < _ACCURACY:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def certified_rate(
    rate: float, *, noise_multiplier: float, epsilon: float, delta: float, steps: float
) -> float:
    """The rate, lowered by steps of 0.1 % and more until its epsilon certifies.

    Example:
        >>> certified_rate(0.9, noise_multiplier=2.0, epsilon=1e-3, delta=1e-5, steps=50)
        0.0
    """
    # The first steps are small: usually the certificate's own rounding is all that lacks.
    share = 1 - _ACCURACY
    while rate > 0 and not _certifies(rate, noise_multiplier, epsilon, delta, steps):
        rate *= 1 - share
        share = min(2 * share, 0.5)
        if rate < SMALLEST_RATE:
            return 0.0
    return rate


def _certifies(rate: float, noise: float, epsilon: float, delta: float, steps: float) -> bool:
    spent = certify_epsilon(
        method="pld", delta=delta, noise_multiplier=noise, sampling_rate=rate, steps=float(steps)
    )
    return bool(spent <= epsilon)


def common_noise(
    *, mean_rate: float, weights: ArrayLike, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike
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
        >>> rates = [
        ...     largest_rate(noise_multiplier=z, epsilon=epsilon, delta=1e-5, steps=50)
        ...     for epsilon in (0.5, 2.0)
        ... ]
        >>> abs(sum(rates) / 2 - 0.1) < 0.01
        True
    """
    share: FloatArray = np.asarray(weights, dtype=np.float64)
    if share.sum() <= 0:
        raise InputError.because("no client has a budget, so there is no noise to calibrate.")
    share = share / share.sum()
    eps, target, count = (
        np.broadcast_to(column, share.shape)[:, None] for column in (epsilon, delta, steps)
    )
    noise = calibrate_noise(epsilon=eps, delta=target, sampling_rate=_GRID[None, :], steps=count)
    logs = np.log(np.maximum.accumulate(noise, axis=1))
    low, high = float(logs.min()), float(logs.max())
    for _ in range(40):
        middle = 0.5 * (low + high)
        rates = [float(np.exp(np.interp(middle, row, np.log(_GRID), left=-np.inf))) for row in logs]
        enough = float(share @ np.array(rates)) >= mean_rate
        low, high = (low, middle) if enough else (middle, high)
    return float(np.exp(high))


@lru_cache(maxsize=1 << 14)
def renyi_epsilon(*, noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """The epsilon that Renyi moments give.

    Example:
        >>> round(renyi_epsilon(noise_multiplier=4.0, rate=0.1, steps=100, delta=1e-5), 2)
        1.08
    """
    if rate == 0 or steps == 0:
        return 0.0
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier))
    spent = RdpAccountant(_ORDERS).compose(event, steps).get_epsilon(delta)
    return float(spent) * (1 + _ROUNDING)


def renyi_noise(*, epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The least noise multiplier by Renyi moments, to 0.1 %.

    Example:
        >>> 4.1 < renyi_noise(epsilon=1.0, delta=1e-5, rate=0.1, steps=100) < 4.4
        True
    """

    def keeps(noise: float) -> bool:
        spent = renyi_epsilon(noise_multiplier=noise, rate=rate, steps=steps, delta=delta)
        return spent <= epsilon

    low, high = 0.1, 0.2
    while not keeps(high):
        low, high = high, 2 * high
        if high > _LARGEST_NOISE:
            raise InputError(
                "epsilon", given=epsilon, allowed="large enough for some noise below 1000000"
            )
    return _closed_in(high, low, keeps)


def renyi_rate(*, noise_multiplier: float, epsilon: float, delta: float, steps: int) -> float:
    """The largest rate by Renyi moments, to 0.1 %; 1 if no sampling is needed.

    Example:
        >>> 0.09 < renyi_rate(noise_multiplier=4.3, epsilon=1.0, delta=1e-5, steps=100) < 0.12
        True
    """

    def keeps(rate: float) -> bool:
        spent = renyi_epsilon(
            noise_multiplier=noise_multiplier, rate=rate, steps=steps, delta=delta
        )
        return spent <= epsilon

    if keeps(1.0):
        return 1.0
    return _closed_in(_LEAST_RATE, 1.0, keeps) if keeps(_LEAST_RATE) else 0.0

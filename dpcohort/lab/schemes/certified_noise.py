# SPDX-License-Identifier: Apache-2.0
"""Each client's own noise for Gaussian steps, calibrated, certified and raised until it holds."""

from __future__ import annotations

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.certify import certify_epsilon
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.deployed_noise import deploy_noise
from dpcohort.clients import Population

__all__ = ["certified_noise", "sampled_epsilon"]


def certified_noise(
    population: Population,
    *,
    rates: FloatArray,
    steps: IntArray,
    neighbours: str = "zero-out",
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
        >>> found = certified_noise(people, rates=np.array([0.1, 0.1]), steps=np.array([100, 0]))
        >>> found.round(2)
        array([3.94,  nan])
    """
    return deploy_noise(
        population,
        calibrated_epsilon=population.epsilon,
        sampling_rates=rates,
        steps=steps,
        contract=Contract.of("tight", sampler="poisson", neighbours=neighbours),
    ).noise_multiplier


def sampled_epsilon(
    population: Population,
    noise: FloatArray,
    rates: FloatArray,
    steps: IntArray,
    *,
    sampler: str = "poisson",
    neighbours: str | None = None,
) -> FloatArray:
    """Certified epsilon of sampled Gaussian steps; NaN for public clients.

    A rate of 0, or no steps, is a client that is never looked at: it spends nothing.

    Example:
        >>> people = Population.from_arrays(sizes=[90], epsilon=1.0, delta=1e-5)
        >>> found = sampled_epsilon(people, np.array([8.0]), np.array([0.2]), np.array([100]))
        >>> bool(0.9 < found[0] < 1.0)
        True
    """
    found = np.where(population.public, np.nan, 0.0)
    for k in np.flatnonzero(~population.public & (rates > 0) & (steps > 0)).tolist():
        found[k] = certify_epsilon(
            method="pld",
            delta=float(population.delta[k]),
            noise_multiplier=float(noise[k]),
            sampling_rate=float(rates[k]),
            steps=float(steps[k]),
            sampler=sampler,
            neighbours=neighbours,
        )
    return found

# SPDX-License-Identifier: Apache-2.0
"""Test A: with gradients that are zero, what comes out is the claimed noise, also from nothing.

Chi-squared tests of the variance, in all and of every update, and a Kolmogorov-Smirnov test of the
shape. It is run with clients of a few records and with clients of two, half of whose Poisson
batches hold one record or none: an empty batch must give noise like any other.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from dpcohort._validate import FloatArray
from dpcohort.audit.claims import Claim, Finding, PrivateTraining

__all__ = ["noise_law", "unlike_normal"]

_CASES = ((8, 4), (2, 1))  # records, batch size
_ROUNDS = 10


def noise_law(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    dimension: int = 20_000,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Test the law of the noise; 200,000 numbers see an error of 1 % in its size.

    Args:
        training: what to test.
        claim: the noise it claims; its multiplier must be above 0.
        seed: seed for the training.
        dimension: length of the updates.
        false_alarm_rate: probability that a correct training fails.
    """
    level = false_alarm_rate / len(_CASES)
    problems, sizes = [], []
    for records, batch_size in _CASES:
        updates = training(
            np.zeros((records, dimension)),
            claim=claim,
            batch_size=batch_size,
            seed=seed,
            cohorts=np.zeros((_ROUNDS, 1), dtype=np.int64),
        )
        noise = updates[:, 0] * batch_size / (claim.noise_multiplier * claim.clip)
        sizes.append(float(np.sqrt(np.mean(noise**2))))
        problems += [f"{p} ({records} records)" for p in unlike_normal(noise, level)]
    seen = ", ".join(f"{size:.4f}" for size in sizes)
    detail = f"size of the noise relative to the claim: {seen}"
    return Finding(
        test="A noise law",
        passed=not problems,
        detail="; ".join([detail, *problems[:3]]),
        false_alarm_rate=false_alarm_rate,
    )


def unlike_normal(noise: FloatArray, level: float) -> list[str]:
    """What is wrong with [updates, D] numbers that should be standard normal.

    Example:
        >>> unlike_normal(np.full((2, 100), 3.0), 1e-7)[0]
        'wrong size in all'
    """
    if not np.all(np.isfinite(noise)):
        return ["not finite"]
    found = []
    if _variance_p(noise.ravel()) < level / 3:
        found.append("wrong size in all")
    for i, row in enumerate(noise):
        if _variance_p(row) < level / 3 / len(noise):
            found.append(f"wrong size in update {i}")
    if stats.kstest(noise.ravel(), "norm", mode="asymp").pvalue < level / 3:
        found.append("not normal")
    return found


def _variance_p(values: FloatArray) -> float:
    """Two-sided p-value of the sum of squares of standard normal numbers."""
    total = float(np.sum(values**2))
    law = stats.chi2(values.size)
    return float(min(1.0, 2 * min(law.cdf(total), law.sf(total))))

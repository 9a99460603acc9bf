# SPDX-License-Identifier: Apache-2.0
"""Test F: the noise on the mean of a cohort has the size that its draws and steps add up to.

Gradients are zero, so the mean of M draws of T local steps each is normal with standard deviation
sqrt(T / M) z C / B. A training that shows only its means is tested all the same: one that draws
the noise of the last steps as one vector, for instance. Chi-squared tests of the size, in all and
in every round, a Kolmogorov-Smirnov test of the shape, and the correlation of every two rounds.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy import stats

from dpcohort._validate import FloatArray
from dpcohort.audit.claims import Claim, Finding, PrivateTraining
from dpcohort.audit.noise_law import unlike_normal

__all__ = ["mean_noise"]

_COHORTS = np.array([[0, 0, 1, 2], [2, 1, 0, 3], [0, 1, 2, 3], [3, 3, 3, 3]], dtype=np.int64)
_RECORDS, _BATCH = 4, 2
_STEPS = (1, 3)


def mean_noise(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    dimension: int = 20_000,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Test the law of the noise on means, and its freshness over rounds and seeds.

    Args:
        training: what to test; updates of every draw, or one row a round, which is their mean.
        claim: the noise of each draw in each step; its multiplier must be above 0.
        seed: seed for the training.
        dimension: length of the updates.
        false_alarm_rate: probability that a correct training fails.

    Example:
        >>> from dpcohort.audit import EngineUnderTest
        >>> merged = EngineUnderTest("batched", merged_noise=True)
        >>> mean_noise(merged, Claim(sampler="fixed"), dimension=1000).passed
        True
    """
    level = false_alarm_rate / (2 * len(_STEPS))
    problems, sizes = [], []
    for steps in _STEPS:
        noise = np.concatenate(
            [_means(training, claim, s, dimension, steps) for s in (seed, seed + 1)]
        )
        sizes.append(float(np.sqrt(np.mean(noise**2))))
        found = unlike_normal(noise, level) + _related(noise, level)
        problems += [f"{problem} ({steps} local steps)" for problem in found]
    seen = ", ".join(f"{size:.4f}" for size in sizes)
    return Finding(
        test="F mean",
        passed=not problems,
        detail="; ".join([f"size of the noise relative to the claim: {seen}", *problems[:3]]),
        false_alarm_rate=false_alarm_rate,
    )


def _means(
    training: PrivateTraining, claim: Claim, seed: int, dimension: int, steps: int
) -> FloatArray:
    """Means [rounds, D] that should be standard normal."""
    updates = training(
        np.zeros((_RECORDS, dimension)),
        claim=claim,
        batch_size=_BATCH,
        seed=seed,
        cohorts=_COHORTS,
        local_steps=steps,
    )
    claimed = np.sqrt(steps / _COHORTS.shape[1]) * claim.noise_multiplier * claim.clip / _BATCH
    means: FloatArray = updates.mean(axis=1) / claimed
    return means


def _related(noise: FloatArray, level: float) -> list[str]:
    """Rounds that should be independent and are not; their products add up to about a normal."""
    pairs = list(combinations(range(len(noise)), 2))
    threshold = float(stats.norm.isf(level / (2 * len(pairs)))) * np.sqrt(noise.shape[1])
    related = [(a, b) for a, b in pairs if not abs(noise[a] @ noise[b]) <= threshold]
    return [f"means {a} and {b} are related" for a, b in related]

# SPDX-License-Identifier: Apache-2.0
"""Test D: the noise of every step, draw, client, round and seed is its own.

Gradients are zero, so updates are noise. Noise vectors that should be independent have a
correlation of about 1 / sqrt(D); a vector used again, or no noise at all, stands out.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy import stats

from dpcohort._validate import FloatArray, IntArray
from dpcohort.audit.claims import Claim, Finding, PrivateTraining

__all__ = ["freshness"]

_COHORTS = np.array([[0, 0, 1], [1, 0, 2]], dtype=np.int64)  # the first has a client twice
_RECORDS, _BATCH = 4, 2
_LEAST_NOISE = 0.1  # of the claimed size: anything below is the rounding of no noise at all


def freshness(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    dimension: int = 20_000,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Test the independence of noise over local steps, draws, clients, rounds and seeds."""
    vectors = _noise_vectors(training, claim, seed, dimension)
    least = _LEAST_NOISE * claim.noise_multiplier * claim.clip / _BATCH * np.sqrt(dimension)
    names = list(vectors)
    pairs = list(combinations(names, 2))
    threshold = float(stats.norm.isf(false_alarm_rate / (2 * len(pairs))))
    worst, where = 0.0, ""
    for a, b in pairs:
        score = _score(vectors[a], vectors[b], least)
        if score > worst:
            worst, where = score, f"{a} and {b}"
    return Finding(
        test="D freshness",
        passed=worst <= threshold,
        detail=f"largest correlation x sqrt(D) = {worst:.2f}, of {where} "
        f"(allowed {threshold:.2f}, {len(pairs)} pairs)",
        false_alarm_rate=false_alarm_rate,
    )


def _noise_vectors(
    training: PrivateTraining, claim: Claim, seed: int, dimension: int
) -> dict[str, FloatArray]:
    def run(seed: int, cohorts: IntArray, local_steps: int) -> FloatArray:
        return training(
            np.zeros((_RECORDS, dimension)),
            claim=claim,
            batch_size=_BATCH,
            seed=seed,
            cohorts=cohorts,
            local_steps=local_steps,
        )

    # A client's first step is the same in a shorter and a longer run of one seed and first round,
    # so the difference is the second step. (Later rounds likewise: gradients are always zero.)
    one, two = run(seed, _COHORTS, 1), run(seed, _COHORTS, 2)
    other = run(seed + 1, _COHORTS[:1], 1)
    vectors = {}
    for t, cohort in enumerate(_COHORTS.tolist()):
        for i, client in enumerate(cohort):
            name = f"round {t} draw {i} client {client}"
            vectors[f"{name} step 0"] = one[t, i]
            vectors[f"{name} step 1"] = two[t, i] - one[t, i]
    vectors["another seed"] = other[0, 0]
    return vectors


def _score(a: FloatArray, b: FloatArray, least: float) -> float:
    """|correlation| sqrt(D); infinite for a vector that is hardly there or not finite."""
    sizes = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if not min(sizes) > least or not np.isfinite(sum(sizes)):
        return float("inf")
    return float(abs(a @ b) / (sizes[0] * sizes[1]) * np.sqrt(a.size))

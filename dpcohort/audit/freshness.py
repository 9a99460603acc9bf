# SPDX-License-Identifier: Apache-2.0
"""Test D: the noise of every step, draw, client, round and seed is its own.

Gradients are zero, so updates are noise. Noise vectors that should be independent have a
correlation of about 1 / sqrt(D); a vector used again, or no noise at all, stands out. So does a
stream that is read again from another place: correlations are looked at for every shift of one
vector against the other, and of a vector against itself. A vector in another order is seen by its
values: at most a few of two vectors coincide in size.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpcohort._validate import FloatArray, IntArray
from dpcohort.audit.claims import Claim, Finding, PrivateTraining, repeats

__all__ = ["freshness"]

ComplexArray = NDArray[np.complex128]

_COHORTS = np.array([[0, 0, 1], [1, 0, 2]], dtype=np.int64)  # the first has a client twice
_RECORDS, _BATCH = 4, 2
_MOST_SHARED = 0.05  # of the values; on a lattice of 2^24 points a handful coincide by chance
_STEPS_TOLERANCE = 0.15  # the same noise twice is 1.41; a thousand numbers stay within 0.13
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
    vectors, two_steps = _noise_vectors(training, claim, seed, dimension)
    least = _LEAST_NOISE * claim.noise_multiplier * claim.clip / _BATCH * np.sqrt(dimension)
    names = list(vectors)
    pairs = list(combinations_with_replacement(names, 2))
    threshold = float(stats.norm.isf(false_alarm_rate / (2 * len(pairs) * dimension)))
    spectra = {name: _spectrum(vector, least) for name, vector in vectors.items()}
    worst, where, problem = 0.0, "", ""
    if not abs(two_steps - 1) < _STEPS_TOLERANCE:
        problem = f"; two steps have {two_steps:.2f} of the noise of two"
    for a, b in pairs:
        score = _score(spectra[a], spectra[b], dimension, same=a == b)
        if score > worst:
            worst, where = score, f"{a} and {b}" if a != b else f"{a} with itself"
        if a != b and _shared(vectors[a], vectors[b]) > _MOST_SHARED * dimension:
            problem = f"; {a} and {b} have the same sizes in another order"
    return Finding(
        test="D freshness",
        passed=worst <= threshold and not problem,
        detail=f"largest correlation x sqrt(D) over all shifts = {worst:.2f}, of {where} "
        f"(allowed {threshold:.2f}, {len(pairs)} pairs){problem}",
        false_alarm_rate=false_alarm_rate,
    )


def _noise_vectors(
    training: PrivateTraining, claim: Claim, seed: int, dimension: int
) -> tuple[dict[str, FloatArray], float]:
    """Noise vectors that should be independent, and the size of two steps against the claim."""

    def run(seed: int, cohorts: IntArray, local_steps: int) -> FloatArray:
        return training(
            np.zeros((_RECORDS, dimension)),
            claim=claim,
            batch_size=_BATCH,
            seed=seed,
            cohorts=cohorts,
            local_steps=local_steps,
        )

    # Where a seed repeats, a client's first step is the same in a shorter and a longer run, so the
    # difference is the second step. Elsewhere the longer run is the sum of two steps of its own,
    # and if they were the same, its size would tell.
    repeatable = repeats(training, claim, seed)
    one, two = run(seed, _COHORTS, 1), run(seed, _COHORTS, 2)
    other = run(seed + 1, _COHORTS[:1], 1)
    vectors = {}
    for t, cohort in enumerate(_COHORTS.tolist()):
        for i, client in enumerate(cohort):
            name = f"round {t} draw {i} client {client}"
            vectors[f"{name} step 0"] = one[t, i]
            vectors[f"{name} step 1"] = two[t, i] - (one[t, i] if repeatable else 0)
    vectors["another seed"] = other[0, 0]
    claimed = np.sqrt(2) * claim.noise_multiplier * claim.clip / _BATCH
    size = float(np.sqrt(np.mean(two.astype(np.float64) ** 2))) / claimed
    return vectors, size


def _spectrum(vector: FloatArray, least: float) -> ComplexArray | None:
    """Transform of the vector at length 1; None for one that is hardly there or not finite."""
    size = float(np.linalg.norm(vector))
    if not size > least or not np.isfinite(size):
        return None
    spectrum: ComplexArray = np.fft.rfft(vector.astype(np.float64) / size)
    return spectrum


def _score(a: ComplexArray | None, b: ComplexArray | None, dimension: int, *, same: bool) -> float:
    """Largest |correlation| sqrt(D) over all cyclic shifts; infinite where there is no noise."""
    if a is None or b is None:
        return float("inf")
    correlations = np.fft.irfft(a * b.conj(), dimension)
    return float(np.abs(correlations[1 if same else 0 :]).max() * np.sqrt(dimension))


def _shared(a: FloatArray, b: FloatArray) -> int:
    """How many sizes of numbers two vectors have in common."""
    return int(np.intersect1d(np.abs(a), np.abs(b)).size)

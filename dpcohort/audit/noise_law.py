# SPDX-License-Identifier: Apache-2.0
"""Tests A and G: with gradients that are zero, what comes out is the claimed noise, tail included.

**A, the law.** Chi-squared tests of the variance, in all and of every update, and a
Kolmogorov-Smirnov test of the shape. It is run with clients of a few records and with clients of
two, half of whose Poisson batches hold one record or none: an empty batch must give noise like any
other.

**G, the tail.** How many numbers lie beyond 4, 4.5, 5, 5.5, 5.7682, 6, 6.5 and 7 standard
deviations, too few and too many, by exact binomial bounds. Noise made of uniform numbers of 24 bits
ends at sqrt(48 ln 2) = 5.768, but one has to draw billions to miss what lies beyond. Its grain
shows much sooner: exp(-r^2 / 2), for r the length of a pair of Box and Muller's transform, or the
probability of the tail beyond a number, for those drawn by inversion, is then a multiple of 2^-24.
In the tail the multiples are small enough to be read off a float. Where such a value is uniform, as
it should be, its remainders v are too, and |sum exp(2 pi i v)| over n of them exceeds t with
probability at most 4 exp(-t^2 / 2n).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import special, stats

from dpcohort._validate import FloatArray
from dpcohort.audit.claims import Claim, Finding, PrivateTraining

__all__ = ["noise_law", "noise_tail", "unlike_normal"]

_CASES = ((8, 4), (2, 1))  # records, batch size
_ROUNDS = 10

_BEYOND = (4.0, 4.5, 5.0, 5.5, 5.7682, 6.0, 6.5, 7.0)
_TAIL_DIMENSION = 1 << 16
_MOST_AT_ONCE = 1 << 26  # numbers in memory
_GRAINED = 1 << 22  # numbers whose grain is looked at
_GRAINS = (24, 32)  # bits of uniform numbers that are in use
_WORTH_TELLING = 0.1  # numbers expected beyond a bound
_READABLE = 2.0**15  # multiples up to here can be read off a 32-bit float


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


def noise_tail(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    normals: int = 1 << 20,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Test the tail of the noise.

    Args:
        training: what to test.
        claim: the noise it claims; its multiplier must be above 0.
        seed: seed for the training.
        normals: how many numbers to draw, at least; a million show the grain of 24 bits, and
            from three billion on the counts alone refute a tail that ends at 5.768.
        false_alarm_rate: probability that a correct training fails.
    """
    counts, drawn, problems = np.zeros(len(_BEYOND), dtype=np.int64), 0, list[str]()
    for noise in _tail_noise(training, claim, seed, normals):
        if drawn == 0:
            problems += _grains(noise, false_alarm_rate / 2)
        counts += _counts_beyond(noise)
        drawn += noise.size
    level = false_alarm_rate / (2 * len(_BEYOND))
    seen = []
    for bound, count in zip(_BEYOND, counts.tolist(), strict=True):
        law = stats.binom(drawn, 2 * float(special.ndtr(-bound)))
        if count or law.mean() >= _WORTH_TELLING:
            seen.append(f"{count} beyond {bound:g} ({law.mean():.3g} expected)")
        if 2 * min(law.cdf(count), law.sf(count - 1)) < level:
            problems.append(f"wrong number beyond {bound:g}")
    return Finding(
        test="G tail",
        passed=not problems,
        detail="; ".join([f"of {drawn:.3g} numbers {', '.join(seen)}", *problems]),
        false_alarm_rate=false_alarm_rate,
        measured={"normals": drawn}
        | {f"beyond {b:g}": c for b, c in zip(_BEYOND, counts.tolist(), strict=True)},
    )


def _tail_noise(
    training: PrivateTraining, claim: Claim, seed: int, normals: int
) -> Iterator[FloatArray]:
    """Standard normal numbers [updates, D], as many at a time as memory holds."""
    # Long updates keep a device busy, and are few to make; shorter ones cost less to examine.
    dimension = _TAIL_DIMENSION if normals <= _MOST_AT_ONCE else 4 * _TAIL_DIMENSION
    rounds = -(-normals // dimension)
    most = _MOST_AT_ONCE // dimension
    for number, start in enumerate(range(0, rounds, most)):
        updates = training(
            np.zeros((2, dimension)),
            claim=claim,
            batch_size=2,
            seed=seed + number,
            cohorts=np.zeros((min(most, rounds - start), 1), dtype=np.int64),
        )[:, 0]
        scale = np.asarray(2 / (claim.noise_multiplier * claim.clip), dtype=updates.dtype)
        yield updates * scale


def _counts_beyond(noise: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    counts = np.zeros(len(_BEYOND), dtype=np.int64)
    for row in noise:  # a row at a time: it stays in the cache
        sizes = np.abs(row)
        tail = sizes[~(sizes <= _BEYOND[0])]  # what is not a number counts as beyond
        counts += [np.count_nonzero(~(tail <= bound)) for bound in _BEYOND]
    return counts


def _grains(noise: FloatArray, level: float) -> list[str]:
    """Whether the uniform numbers behind the noise are multiples of 2^-24 or 2^-32."""
    some = noise.ravel()[:_GRAINED].astype(np.float64)
    halves, neighbours = some.reshape(-1, 2, 8), some.reshape(-1, 2)
    probabilities = {
        "pairs as torch writes them": _beyond_radius(halves[:, 0], halves[:, 1]),
        "pairs of neighbours": _beyond_radius(neighbours[:, 0], neighbours[:, 1]),
        "single numbers": special.ndtr(-np.abs(some)),
    }
    tried = len(probabilities) * len(_GRAINS)
    found = []
    for how, tail in probabilities.items():
        for bits in _GRAINS:
            multiples = tail[tail < _READABLE * 2.0**-bits] * 2.0**bits
            together = abs(np.exp(2j * np.pi * multiples).sum())
            if 4 * np.exp(-(together**2) / (2 * max(1, multiples.size))) < level / tried:
                found.append(f"made of uniform numbers of {bits} bits ({how}): the tail is cut")
    return found


def _beyond_radius(first: FloatArray, second: FloatArray) -> FloatArray:
    """Probability that a pair of normal numbers is longer than this one; uniform, as it is one."""
    probability: FloatArray = np.exp(-(first**2 + second**2) / 2).ravel()
    return probability


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

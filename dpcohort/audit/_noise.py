# SPDX-License-Identifier: Apache-2.0
"""Tests A, D, F and G: with gradients that are zero, what comes out is the claimed noise.

**A, the law.** Chi-squared tests of the variance, in all and of every update, and a
Kolmogorov-Smirnov test of the shape. It is run with clients of a few records and with clients of
two, half of whose Poisson batches hold one record or none: an empty batch must give noise like any
other.

**D, freshness.** The noise of every step, draw, client, round and seed is its own. Noise vectors
that should be independent have a correlation of about 1 / sqrt(D); a vector used again, or no noise
at all, stands out. So does a stream that is read again from another place: correlations are looked
at for every shift of one vector against the other, and of a vector against itself. A vector in
another order is seen by its values: at most a few of two vectors coincide in size.

**F, the mean.** The mean of M draws of T local steps each is normal with standard deviation
sqrt(T / M) z C / B. A training that shows only its means is tested all the same: one that draws the
noise of the last steps as one vector, for instance. Tests as in A, and the correlation of every two
rounds.

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

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations, combinations_with_replacement

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dpcohort._validate import FloatArray
from dpcohort.audit._claims import Claim, Finding, PrivateTraining, repeats, updates_of

ComplexArray = NDArray[np.complex128]

_CASES = ((8, 4), (2, 1))  # records, batch size
_ROUNDS = 10

_COHORTS = np.array([[0, 0, 1], [1, 0, 2]], dtype=np.int64)  # the first has a client twice
_RECORDS, _BATCH = 4, 2
_MOST_SHARED = 0.05  # of the values; on a lattice of 2^24 points a handful coincide by chance
_STEPS_TOLERANCE = 0.15  # the same noise twice is 1.41; a thousand numbers stay within 0.13
_LEAST_NOISE = 0.1  # of the claimed size: anything below is the rounding of no noise at all

_MEAN_COHORTS = np.array([[0, 0, 1, 2], [2, 1, 0, 3], [0, 1, 2, 3], [3, 3, 3, 3]], dtype=np.int64)
_MEAN_STEPS = (1, 3)

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
    noises = {}
    for records, batch in _CASES:
        zeros = np.zeros((records, dimension))
        updates = updates_of(training, zeros, claim, batch_size=batch, seed=seed, rounds=_ROUNDS)
        noises[f"{records} records"] = updates * batch / (claim.noise_multiplier * claim.clip)
    return _like_normal("A noise law", noises, false_alarm_rate)


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
        updates = updates_of(
            training,
            np.zeros((2, dimension)),
            claim,
            batch_size=2,
            seed=seed + number,
            rounds=min(most, rounds - start),
        )
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
    problems = []
    for how, tail in probabilities.items():
        for bits in _GRAINS:
            multiples = tail[tail < _READABLE * 2.0**-bits] * 2.0**bits
            together = abs(np.exp(2j * np.pi * multiples).sum())
            if 4 * np.exp(-(together**2) / (2 * max(1, multiples.size))) < level / tried:
                problems.append(f"made of uniform numbers of {bits} bits ({how}): the tail is cut")
    return problems


def _beyond_radius(first: FloatArray, second: FloatArray) -> FloatArray:
    """Probability that a pair of normal numbers is longer than this one; uniform, as it is one."""
    return np.asarray(np.exp(-(first**2 + second**2) / 2).ravel())


def unlike_normal(noise: FloatArray, level: float) -> list[str]:
    """What is wrong with [updates, D] numbers that should be standard normal.

    Example:
        >>> unlike_normal(np.full((2, 100), 3.0), 1e-7)[0]
        'wrong size in all'
    """
    if not np.all(np.isfinite(noise)):
        return ["not finite"]
    problems = []
    if _variance_p(noise.ravel()) < level / 3:
        problems.append("wrong size in all")
    for i, row in enumerate(noise):
        if _variance_p(row) < level / 3 / len(noise):
            problems.append(f"wrong size in update {i}")
    if stats.kstest(noise.ravel(), "norm", mode="asymp").pvalue < level / 3:
        problems.append("not normal")
    return problems


def _variance_p(values: FloatArray) -> float:
    """Two-sided p-value of the sum of squares of standard normal numbers."""
    total = float(np.sum(values**2))
    law = stats.chi2(values.size)
    return float(min(1.0, 2 * min(law.cdf(total), law.sf(total))))


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
    scores, threshold = correlations(vectors, least, false_alarm_rate)
    worst, where, problem = 0.0, "", ""
    if not abs(two_steps - 1) < _STEPS_TOLERANCE:
        problem = f"; two steps have {two_steps:.2f} of the noise of two"
    for (a, b), score in scores.items():
        if score > worst:
            worst, where = score, f"{a} and {b}" if a != b else f"{a} with itself"
        if a != b and _shared(vectors[a], vectors[b]) > _MOST_SHARED * dimension:
            problem = f"; {a} and {b} have the same sizes in another order"
    return Finding(
        test="D freshness",
        passed=worst <= threshold and not problem,
        detail=f"largest correlation x sqrt(D) over all shifts = {worst:.2f}, of {where} "
        f"(allowed {threshold:.2f}, {len(scores)} pairs){problem}",
        false_alarm_rate=false_alarm_rate,
    )


def _noise_vectors(
    training: PrivateTraining, claim: Claim, seed: int, dimension: int
) -> tuple[dict[str, FloatArray], float]:
    """Noise vectors that should be independent, and the size of two steps against the claim."""
    run = _noise_alone(training, claim, dimension)
    # Where a seed repeats, a client's first step is the same in a shorter and a longer run, so the
    # difference is the second step. Elsewhere the longer run is the sum of two steps of its own,
    # and if they were the same, its size would tell.
    repeatable = repeats(training, claim, seed)
    one, two = (run(seed=seed, cohorts=_COHORTS, local_steps=steps) for steps in (1, 2))
    other = run(seed=seed + 1, cohorts=_COHORTS[:1])
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


def correlations(
    vectors: Mapping[str, FloatArray], least: float, level: float
) -> tuple[dict[tuple[str, str], float], float]:
    """Largest |correlation| sqrt(D) over all cyclic shifts of every two vectors, and what may be.

    A vector is paired with itself as well, shifted. The score is infinite for one that is hardly
    there (its length is at most ``least``) or not finite.

    Example:
        >>> correlations({"a": np.eye(4)[0], "b": np.eye(4)[1]}, 0.1, 1e-7)[0]
        {('a', 'a'): 0.0, ('a', 'b'): 2.0, ('b', 'b'): 0.0}
    """
    dimension = len(next(iter(vectors.values())))
    spectra: dict[str, ComplexArray] = {}
    for name, vector in vectors.items():
        size = float(np.linalg.norm(vector))
        if least < size < np.inf:
            spectra[name] = np.fft.rfft(vector.astype(np.float64) / size)

    def score(a: str, b: str) -> float:
        if not {a, b} <= spectra.keys():
            return float("inf")
        shifts = np.fft.irfft(spectra[a] * spectra[b].conj(), dimension)
        return float(np.abs(shifts[1 if a == b else 0 :]).max() * np.sqrt(dimension))

    scores = {pair: score(*pair) for pair in combinations_with_replacement(vectors, 2)}
    return scores, float(stats.norm.isf(level / (2 * len(scores) * dimension)))


def _shared(a: FloatArray, b: FloatArray) -> int:
    """How many sizes of numbers two vectors have in common."""
    return int(np.intersect1d(np.abs(a), np.abs(b)).size)


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
    noises = {
        f"{steps} local steps": np.concatenate(
            [_means(training, claim, s, dimension, steps) for s in (seed, seed + 1)]
        )
        for steps in _MEAN_STEPS
    }
    return _like_normal("F mean", noises, false_alarm_rate, fresh=True)


def _like_normal(
    test: str, noises: dict[str, FloatArray], false_alarm_rate: float, *, fresh: bool = False
) -> Finding:
    """Whether numbers [updates, D] are standard normal, and where asked, unlike each other."""
    level = false_alarm_rate / (len(noises) * (1 + fresh))
    problems = [
        f"{problem} ({case})"
        for case, noise in noises.items()
        for problem in unlike_normal(noise, level) + (_related(noise, level) if fresh else [])
    ]
    seen = ", ".join(f"{np.sqrt(np.mean(noise**2)):.4f}" for noise in noises.values())
    return Finding(
        test=test,
        passed=not problems,
        detail="; ".join([f"size of the noise relative to the claim: {seen}", *problems[:3]]),
        false_alarm_rate=false_alarm_rate,
    )


def _means(
    training: PrivateTraining, claim: Claim, seed: int, dimension: int, steps: int
) -> FloatArray:
    """Means [rounds, D] that should be standard normal."""
    run = _noise_alone(training, claim, dimension)
    updates = run(seed=seed, cohorts=_MEAN_COHORTS, local_steps=steps)
    claimed = np.sqrt(steps / _MEAN_COHORTS.shape[1]) * claim.noise_multiplier * claim.clip / _BATCH
    return np.asarray(updates.mean(axis=1) / claimed)


def _noise_alone(
    training: PrivateTraining, claim: Claim, dimension: int
) -> Callable[..., FloatArray]:
    """The training of clients whose gradients are zero; it takes seed, cohorts and local steps."""
    zeros = np.zeros((_RECORDS, dimension))
    return partial(training, zeros, claim=claim, batch_size=_BATCH)


def _related(noise: FloatArray, level: float) -> list[str]:
    """Rounds that should be independent and are not; their products add up to about a normal."""
    pairs = list(combinations(range(len(noise)), 2))
    threshold = float(stats.norm.isf(level / (2 * len(pairs)))) * np.sqrt(noise.shape[1])
    related = [(a, b) for a, b in pairs if not abs(noise[a] @ noise[b]) <= threshold]
    return [f"means {a} and {b} are related" for a, b in related]

# SPDX-License-Identifier: Apache-2.0
"""Tests C and K: how well records of huge gradients, canaries, show in what is released.

**C, two worlds.** Can worlds that differ in one record be told apart better than claimed? One
record with a huge gradient is there or not (or is turned around, for the fixed sampler), with every
record used in each step. Along its direction the updates of the two worlds are normal with means at
most sensitivity C / B apart and standard deviation z C / B. A t statistic then follows a noncentral
t law at most, and too large a value refutes the claim. Black box: nothing is assumed about seeds or
about what happens inside.

**K, one run.** A lower bound on epsilon from one training with many canaries, beside the certified
one. Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023, arXiv
2305.08846). Each of m canaries is in the data or not by a fair coin (for the fixed sampler: is one
record or its opposite). From what the training released an auditor guesses the coins of the
canaries it is surest of and abstains from the others. Their Theorem 5.2: for a training that keeps
(ε, δ), the number of right guesses among r reaches v with probability at most

    P[W ≥ v] + 2 m δ max_i P[v > W ≥ v - i] / i,    W binomial(r, e^ε / (1 + e^ε)).

An ε for which that is small is refuted. One training cannot show much: with m canaries no ε above
about ln m can be refuted, and a training with half of its noise often passes. It is a smoke test of
everything together; tests A to J see single faults.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.accounting import certify_epsilon
from dpcohort.audit._claims import Claim, Finding, PrivateTraining, updates_of

_RECORDS, _DIMENSION = 4, 16
_SIZE = 1e3  # of the record's gradient, in units of C


def canary(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    updates: int = 400,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Test how well the presence of one record shows.

    Args:
        training: what to test.
        claim: what it claims; noise multipliers below 1 see the most.
        seed: seed for the training; the two worlds get different ones.
        updates: number of updates from each world.
        false_alarm_rate: probability that a correct training fails.
    """
    direction = np.zeros(_DIMENSION)
    direction[[0, -1]] = np.sqrt(0.5)

    def projections(sign: float, seed: int) -> FloatArray:
        gradients = np.zeros((_RECORDS, _DIMENSION))
        gradients[0] = sign * _SIZE * claim.clip * direction
        setting: Any = {"batch_size": _RECORDS, "seed": seed, "rounds": updates}
        seen = updates_of(training, gradients, claim, **setting)
        return np.asarray(seen @ direction * _RECORDS / claim.clip)

    present, absent = projections(1.0, 2 * seed), projections(claim.absent, 2 * seed + 1)
    gap = float(present.mean() - absent.mean())
    spread = float(np.sqrt((present.var(ddof=1) + absent.var(ddof=1)) / 2))
    law = stats.nct(
        2 * updates - 2, claim.sensitivity / claim.noise_multiplier * np.sqrt(updates / 2)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.float64(gap) / np.float64(spread * np.sqrt(2 / updates))
    # Not (p >= level), so that no noise at all, an infinite statistic, fails as well.
    p_value = float(law.sf(statistic)) if np.isfinite(statistic) else 0.0
    return Finding(
        test="C canary",
        passed=p_value >= false_alarm_rate,
        detail=f"the worlds are {gap:.3f} C/B apart at a spread of {spread:.3f} C/B "
        f"(claimed: at most {claim.sensitivity:g} at {claim.noise_multiplier:g}), "
        f"p = {p_value:.1e}",
        false_alarm_rate=false_alarm_rate,
    )


_DELTA = 1e-5  # of the epsilons that are reported
_STRICT_DELTA = 1e-10  # of the one that is refuted: 2 m δ must be small against false alarms
_RATE = 0.5
_SHARES = (0.05, 0.1, 0.25, 0.5)  # of the canaries guessed "in", and as many "out"
_CANARY_SIZE = 10.0  # of a canary's gradient, in units of C
_CONFIDENCE = 0.95


def one_run(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    canaries: int = 500,
    rounds: int = 8,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Bound epsilon from below, and compare with what is certified for the same steps.

    Args:
        training: what to test.
        claim: what it claims.
        seed: of the coins, and for the training.
        canaries: m, at least 20.
        rounds: noisy steps of the training; half of the records take part in each.
        false_alarm_rate: probability that a correct training fails.
    """
    coins = np.random.default_rng([seed, 2305]).random(canaries) < 0.5
    batch = round(_RATE * canaries)
    gradients = np.diag(np.where(coins, 1.0, claim.absent)) * _CANARY_SIZE * claim.clip
    updates = updates_of(training, gradients, claim, batch_size=batch, seed=seed, rounds=rounds)
    certified, strict = certify_epsilon(
        noise_multiplier=claim.noise_multiplier,
        delta=[_DELTA, _STRICT_DELTA],
        sampling_rate=batch / canaries,
        steps=rounds,
        sampler=claim.sampler,
        method="pld",
    )
    scores = _scores(updates.astype(np.float64) * batch / claim.clip, claim)
    found = [_right_guesses(scores, coins, share) for share in _SHARES]
    tries = len(found)  # how many to guess was not fixed before, so each try is paid for
    p_value = tries * min(
        one_run_p_value(canaries, *one, float(strict), _STRICT_DELTA) for one in found
    )
    each = (1 - _CONFIDENCE) / tries
    lower = max(epsilon_lower_bound(canaries, *one, _DELTA, each) for one in found)
    right, guesses = found[-1][1], found[-1][0]
    return Finding(
        test="K one run",
        passed=bool(p_value >= false_alarm_rate),
        detail=f"epsilon is at least {lower:.2f} with {_CONFIDENCE:.0%} confidence; certified "
        f"{certified:.2f} at delta {_DELTA:g} ({right} of {guesses} canaries guessed right)",
        false_alarm_rate=false_alarm_rate,
        measured={"epsilon lower bound": lower, "epsilon certified": float(certified)},
    )


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Probability, at most, that so many guesses are right if (epsilon, delta) is kept.

    Example:
        >>> one_run_p_value(100, 20, 20, 0.0, 0.0) == 0.5**20
        True
    """
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    tail = float(law.sf(right - 1))
    below = np.cumsum(law.pmf(np.arange(right - 1, -1, -1))) / np.arange(1, right + 1)
    spread = float(below.max(initial=0.0))
    return min(1.0, tail + 2 * canaries * delta * spread)


def epsilon_lower_bound(
    canaries: int, guesses: int, right: int, delta: float, level: float
) -> float:
    """The largest epsilon that so many right guesses refute at this level; 0 if none.

    Example:
        >>> round(epsilon_lower_bound(1000, 100, 90, 1e-5, 0.05), 2)
        1.63
    """

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) < level

    low, high = 0.0, 1.0
    if not refuted(low):
        return 0.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _scores(seen: FloatArray, claim: Claim) -> FloatArray:
    """Log-likelihood ratio of "in" against "out" for each canary; NaN says nothing."""
    variance = max(claim.noise_multiplier, 1e-3) ** 2

    def with_record(sign: float) -> FloatArray:
        both = np.logaddexp(np.log1p(-_RATE), np.log(_RATE) + (sign * seen - 0.5) / variance)
        return np.asarray(both.sum(axis=0), dtype=np.float64)

    with np.errstate(invalid="ignore"):
        scores = with_record(1.0)
        if claim.absent:
            scores = scores - with_record(claim.absent)
    return np.nan_to_num(scores)


def _right_guesses(scores: FloatArray, coins: BoolArray, share: float) -> tuple[int, int]:
    """Number of guesses and of right ones, if that share is guessed in and as many out."""
    each = max(1, int(share * scores.size))
    order = np.argsort(scores)
    right = int(coins[order[-each:]].sum()) + int((~coins[order[:each]]).sum())
    return 2 * each, right

# SPDX-License-Identifier: Apache-2.0
"""Test K: a lower bound on epsilon from one training with many canaries, beside the certified one.

Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run" (ICML 2025, arXiv
2410.22235). Each of m canaries is in the data or not by a fair coin (for the fixed sampler: is one
record or its opposite). From what the training released an auditor guesses the coins of the g
canaries it is surest of and abstains from the others. Claimed is a whole trade-off curve,

    P[A if in] ≤ f(P[A if out]) and the other way round,    f(y) = min_ε (δ(ε) + e^ε y),

with the δ(ε) that is certified at every ε. Let p_j be the probability that j guesses are right.
Applied to "guess i is right, and at least j - 1 of the others are", added up over i and divided by
m, the claim bounds what the tails hold of right and of wrong guesses:

    R_j ≤ f(W_{j-1}),    R_j = Σ_{i ≥ j} i p_i / m,    W_j = Σ_{i ≥ j} (g - i) p_i / m.

(f is concave, so it holds for averages.) Were v guesses or more right with probability τ, R_v and
W_v would be at least what they are if exactly v were; W_{j-1} ≥ f⁻¹(R_j) then says how much must
lie below, step by step down to j = 0. If that is more than there is, R_0 + W_0 = g / m, such a τ is
impossible: the p-value of v right guesses is the largest τ that is possible.

The bound on epsilon: the curve of the same steps with ever more noise is claimed instead, until it
is refuted. One training cannot show all: a whole run of canaries may be lucky together, and with m
of them no epsilon far above ln m can be refuted. Tests A to J see single faults.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import bisect

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.accounting import AttackRisk, certify_delta, certify_epsilon
from dpcohort.audit._claims import Claim, Finding, PrivateTraining, updates_of

_DELTA = 1e-5  # of the epsilons that are reported
_RATE = 0.5
_SHARES = (0.05, 0.1, 0.25, 0.5)  # of the canaries guessed "in", and as many "out"
_CANARY_SIZE = 10.0  # of a canary's gradient, in units of C
_CONFIDENCE = 0.95
_NOISE = np.exp2(np.arange(-48, 80) / 16)  # factors on the claimed noise that are tried
_EPSILONS = 21  # at which a curve is certified
_SMALLEST_DELTA, _LARGEST_EPSILON = 1e-13, 500.0
_LEAST = -40.0  # the logarithm of the least p-value told apart


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
        rounds: noisy steps of the training; half of the canaries take part in each.
        false_alarm_rate: probability that a correct training fails.
    """
    coins = np.random.default_rng([seed, 2305]).random(canaries) < 0.5
    batch = round(_RATE * canaries)
    gradients = np.diag(np.where(coins, 1.0, claim.absent)) * _CANARY_SIZE * claim.clip
    updates = updates_of(training, gradients, claim, batch_size=batch, seed=seed, rounds=rounds)
    scores = _scores(updates.astype(np.float64) * batch / claim.clip, claim)
    steps = {"sampling_rate": batch / canaries, "steps": rounds, "sampler": claim.sampler}
    # How many to guess was not fixed before, so each try is paid for.
    tries = [_right_guesses(scores, coins, share) for share in _SHARES]

    def refuted(factor: float) -> bool:
        risk, level = trade_off(factor * claim.noise_multiplier, **steps), 1 - _CONFIDENCE
        return not all(is_possible(risk, level / len(tries), canaries, *one) for one in tries)

    risk = trade_off(claim.noise_multiplier, **steps)
    p_value = len(tries) * min(one_run_p_value(risk, canaries, *one) for one in tries)
    # More noise is a stronger claim: the first factor that is refuted is searched for.
    low, high = 0, len(_NOISE)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if refuted(float(_NOISE[middle])) else (middle + 1, high)
    lower = 0.0 if low == len(_NOISE) else _epsilon(_NOISE[low] * claim.noise_multiplier, steps)
    certified, (guesses, right) = _epsilon(claim.noise_multiplier, steps), tries[-1]
    return Finding(
        test="K one run",
        passed=p_value >= false_alarm_rate,
        detail=f"epsilon is at least {lower:.2f} with {_CONFIDENCE:.0%} confidence; certified "
        f"{certified:.2f} at delta {_DELTA:g}, p = {min(1.0, p_value):.2g} ({right} of {guesses} "
        "canaries guessed right)",
        false_alarm_rate=false_alarm_rate,
        measured={
            "epsilon lower bound": lower,
            "epsilon certified": certified,
            "p-value": min(1.0, p_value),
        },
    )


def trade_off(noise_multiplier: float, **steps: Any) -> AttackRisk:
    """The certified trade-off curve of these steps.

    Args:
        noise_multiplier: z.
        steps: as :func:`~dpcohort.accounting.certify_epsilon` takes them.

    Example:
        >>> risk = trade_off(1.0, sampling_rate=1.0, steps=1)  # two normal laws that are 1 apart
        >>> 0.6914 < risk.hits(0.3085) < 0.692
        True
    """
    terms = {"noise_multiplier": noise_multiplier, "method": "pld", **steps}
    top = min(float(certify_epsilon(delta=_SMALLEST_DELTA, **terms)), _LARGEST_EPSILON)
    epsilons = np.linspace(0.0, top, _EPSILONS)
    deltas = certify_delta(epsilon=epsilons, **terms)
    return AttackRisk(
        delta=_SMALLEST_DELTA, epsilons=tuple(epsilons.tolist()), deltas=tuple(deltas.tolist())
    )


def is_possible(risk: AttackRisk, level: float, canaries: int, guesses: int, right: int) -> bool:
    """Whether this number of right guesses, or more, may have a probability of this level.

    Example:
        >>> perfect = AttackRisk(delta=0.0, epsilons=(0.0,), deltas=(0.0,))
        >>> is_possible(perfect, 0.01, 100, 20, 12), is_possible(perfect, 0.01, 100, 20, 20)
        (True, False)
    """
    # Right and wrong are 1 at most together, where lines of ε below 0 are never the lowest.
    growth, delta = np.exp(np.array(risk.epsilons)), np.array(risk.deltas)
    held_right, held_wrong = level * right / canaries, level * (guesses - right) / canaries
    for j in range(right - 1, -1, -1):
        more = float(((held_right - delta) / growth).max()) - held_wrong
        if more > 0:
            held_wrong += more
            held_right += more * j / (guesses - j)
        if held_right + held_wrong > guesses / canaries:
            return False
    return True


def one_run_p_value(risk: AttackRisk, canaries: int, guesses: int, right: int) -> float:
    """p-value: the largest probability of this number of right guesses, or more.

    Args:
        risk: the claimed trade-off curve.
        canaries: m.
        guesses: coins guessed, always as many.
        right: those guessed right.

    Example:
        >>> perfect = AttackRisk(delta=0.0, epsilons=(0.0,), deltas=(0.0,))
        >>> round(math.log2(one_run_p_value(perfect, 100, 20, 20)), 2)
        -20.0
    """

    def excess(log_level: float) -> float:
        possible = is_possible(risk, math.exp(log_level), canaries, guesses, right)
        return -1.0 if possible else 1.0

    if excess(0.0) < 0:
        return 1.0
    if excess(_LEAST) > 0:
        return math.exp(_LEAST)
    return math.exp(float(bisect(excess, _LEAST, 0.0, xtol=1e-3)))


def _epsilon(noise_multiplier: float, steps: dict[str, Any]) -> float:
    terms: Any = {"noise_multiplier": noise_multiplier, "method": "pld", **steps}
    return float(certify_epsilon(delta=_DELTA, **terms))


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

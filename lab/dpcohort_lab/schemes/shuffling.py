# SPDX-License-Identifier: Apache-2.0
"""Amplification by shuffling: what n shuffled epsilon_0-local reports tell about one of them.

Replace-one neighbours; the observer sees the reports in random order. The argument is that of
Feldman, McMillan and Talwar ("Hiding among the clones", FOCS 2021, arXiv 2012.12803; its closed
form was read in surveys and other people's code, the reduction below is derived here).

Let R_0, R_1 be the report's laws with the record and with its replacement. Both are mixtures of two
laws, R_0 = q Q_0 + (1-q) Q_1 and R_1 = (1-q) Q_0 + q Q_1 with q = e^e0/(e^e0 + 1), because every
e0-private pair is a post-processing of randomised response. Any other report is at least
e^-e0 R_0 and e^-e0 R_1, hence at least e^-e0 (Q_0 + Q_1)/2: with probability e^-e0 it is a fair
coin between Q_0 and Q_1, a *clone*. Given which reports are clones, the shuffled reports are made
from two counts alone. So no pair of neighbours is easier to tell apart than

    (A + D, C - A + 1 - D)  against  (A + 1 - D, C - A + D),
    C ~ Bin(n - 1, e^-e0),  A ~ Bin(C, 1/2),  D ~ Bernoulli(q).

Given C = c the likelihood ratio is increasing in the first count, so delta(epsilon) is a sum of
binomial tails: :func:`shuffled_delta` is this bound without further loss. The closed form

    ln(1 + (e^e0 - 1)/(e^e0 + 1) (8 sqrt(e^e0 ln(4/delta)/n) + 8 e^e0/n)),
    for e0 <= ln(n / (16 ln(2/delta))),

is Theorem 3.1 of the paper. Where its condition fails, :func:`closed_form_epsilon` gives e0 back:
no amplification. Tests hold it above the exact bound.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtrc

from dpcohort_lab.checks import FloatArray
from dpcohort_lab.schemes.profile import composed_epsilon_of

_TAIL = 1e-16
_ROUNDING = 1e-14


def shuffled_delta(epsilon: FloatArray, *, local_epsilon: float, reports: int) -> FloatArray:
    """The delta of one shuffled round at each epsilon >= 0 (the clones bound, computed).

    Args:
        epsilon: at least 0.
        local_epsilon: e0 of every report.
        reports: n, how many are shuffled.

    Example:
        >>> shuffled_delta(np.array([0.0, 1.0]), local_epsilon=1.0, reports=1)
        array([0.46..., 0. ])
    """
    e0, n = local_epsilon, reports
    from scipy.stats import binom  # a third of the start of every command, and rarely needed

    others = binom(n - 1, math.exp(-e0))
    low, high = int(others.ppf(_TAIL)), int(others.isf(_TAIL))
    counts = np.arange(max(low - 1, 0), min(high + 1, n - 1) + 1)
    mass = others.pmf(counts)
    # What is left of the sum is counted as lost altogether.
    left_out = max(0.0, 1.0 - float(mass.sum())) if counts.size < n else 0.0
    q = 1 / (1 + math.exp(-e0))
    gamma = np.exp(np.minimum(epsilon, e0))[:, None]
    gain = np.maximum(q - gamma * (1 - q), 0.0)  # weight of the tail at x - 1
    cost = gamma * q - (1 - q)
    with np.errstate(divide="ignore"):
        share = cost / (cost + gain)
    first = np.floor(share * (counts[None, :] + 1)).astype(np.int64) + 1
    tails = gain * _upper_tail(first - 1, counts) - cost * _upper_tail(first, counts)
    delta = np.maximum(tails, 0.0) @ mass + left_out + _ROUNDING
    return np.where(epsilon >= e0, 0.0, np.minimum(delta, 1.0))


def _upper_tail(least: np.ndarray, counts: np.ndarray) -> FloatArray:
    """P(Bin(c, 1/2) >= least) for each c."""
    wide = np.broadcast_to(counts[None, :], least.shape)
    inside = bdtrc(np.clip(least - 1, 0, wide).astype(np.float64), wide, 0.5)
    found = np.where(least <= 0, 1.0, np.where(least > wide, 0.0, inside))
    return np.asarray(found, dtype=np.float64)


def shuffled_epsilon(
    *, local_epsilon: float, reports: int, rate: float, rounds: int, delta: float
) -> float:
    """Certified epsilon of many rounds, each shuffling the reports of a fresh sample of records.

    The sample has a fixed size and is drawn without replacement; the shuffler hides who is in it.
    For replace-one neighbours its profile is r delta(ln(1 + (e^epsilon - 1)/r)) (Balle, Barthe and
    Gaboardi, 2018), and rounds compose as privacy loss distributions.

    Args:
        local_epsilon: e0 of every report.
        reports: reports in a round, m.
        rate: m over the number of all records.
        rounds: how many.
        delta: in (0, 1).

    Example:
        >>> once = shuffled_epsilon(local_epsilon=2.0, reports=1000, rate=1.0, rounds=1, delta=1e-5)
        >>> many = shuffled_epsilon(local_epsilon=2.0, reports=1000, rate=0.1, rounds=9, delta=1e-5)
        >>> 0.3 < once < 0.7, many < once
        (True, True)
    """

    def profile(epsilon: FloatArray) -> FloatArray:
        inner = np.log1p(np.expm1(epsilon) / rate)
        found = rate * shuffled_delta(inner, local_epsilon=local_epsilon, reports=reports)
        return np.asarray(found, dtype=np.float64)

    largest = math.log1p(rate * math.expm1(local_epsilon))
    return composed_epsilon_of(profile, largest=largest, uses=rounds, delta=delta)


def closed_form_epsilon(*, local_epsilon: float, reports: int, delta: float) -> tuple[float, bool]:
    """Theorem 3.1 of Feldman, McMillan and Talwar; e0 itself where its condition fails.

    Returns:
        epsilon of one shuffled round, and whether shuffling amplified.

    Example:
        >>> round(closed_form_epsilon(local_epsilon=1.0, reports=10_000, delta=1e-6)[0], 3)
        0.214
        >>> closed_form_epsilon(local_epsilon=1.0, reports=100, delta=1e-6)
        (1.0, False)
    """
    e0, n = local_epsilon, reports
    if e0 > math.log(n / (16 * math.log(2 / delta))):
        return e0, False
    spread = 8 * math.sqrt(math.exp(e0) * math.log(4 / delta) / n) + 8 * math.exp(e0) / n
    found = math.log1p(math.tanh(e0 / 2) * spread)
    return min(found, e0), found < e0


def composed_closed_form(
    *, local_epsilon: float, reports: int, rate: float, rounds: int, delta: float
) -> tuple[float, bool]:
    """The closed form, amplified by sampling, over many rounds by advanced composition.

    Half of delta goes to the rounds, half to the composition (Dwork, Rothblum and Vadhan, 2010:
    sqrt(2 T ln(1/d')) e + T e (e^e - 1)); basic composition T e where that is less.

    Example:
        >>> found, amplified = composed_closed_form(local_epsilon=1.0, reports=10_000, rate=0.1,
        ...                                         rounds=100, delta=1e-5)
        >>> 1.0 < found < 1.5, amplified
        (True, True)
    """
    half = delta / 2
    once, amplified = closed_form_epsilon(
        local_epsilon=local_epsilon, reports=reports, delta=min(half / (rounds * rate), 0.5)
    )
    small = math.log1p(rate * math.expm1(once))
    spread = math.sqrt(2 * rounds * math.log(1 / half)) * small
    return min(spread + rounds * small * math.expm1(small), rounds * small), amplified


def local_epsilon(*, report_epsilon: float, reports: int, delta: float) -> float:
    """The epsilon of many reports on one record against whoever sees each of them: no shuffler.

    Every e0-private report is a post-processing of randomised response, so the composition is
    exactly a binomial sum (Kairouz, Oh and Viswanath, 2015); rounded up.

    Example:
        >>> round(local_epsilon(report_epsilon=0.5, reports=1, delta=1e-5), 3)
        0.5
        >>> 2.7 < local_epsilon(report_epsilon=0.1, reports=100, delta=1e-5) < 4.5
        True
    """
    if reports == 0:
        return 0.0
    flips = np.arange(reports + 1)
    from scipy.stats import binom

    mass = binom.pmf(flips, reports, 1 / (1 + math.exp(report_epsilon)))
    losses = report_epsilon * (reports - 2 * flips)
    low, high = 0.0, reports * report_epsilon
    for _ in range(200):
        middle = 0.5 * (low + high)
        delta_here = float(mass @ np.maximum(-np.expm1(middle - losses), 0.0)) + _ROUNDING
        low, high = (low, middle) if delta_here <= delta else (middle, high)
    return high

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from dpcohort.accounting import AttackRisk, certify_epsilon
from dpcohort.audit import Claim, StepUnderTest, one_run, one_run_p_value
from dpcohort.audit._one_run import is_possible, trade_off

PURE = AttackRisk(delta=0.0, epsilons=(1.0,), deltas=(0.0,))


def largest_tail(risk: AttackRisk, m: int, g: int, v: int) -> float:
    """The same by a linear program over all laws of the number of right guesses."""
    j = np.arange(g + 1)
    rows, limits = [], []
    for epsilon, delta in zip(risk.epsilons, risk.deltas, strict=True):
        growth = math.exp(epsilon)
        for start, slope in ((delta, growth), (1 - (1 - delta) / growth, 1 / growth)):
            for first in range(1, g + 1):
                rows.append((j * (j >= first) - slope * (g - j) * (j >= first - 1)) / m)
                limits.append(start)
    found = optimize.linprog(
        -(j >= v).astype(float), A_ub=rows, b_ub=limits, A_eq=np.ones((1, g + 1)), b_eq=[1.0]
    )
    return float(-found.fun)


@pytest.mark.parametrize(("guesses", "right"), [(12, 11), (8, 8), (20, 14), (20, 19)])
@pytest.mark.parametrize(
    "risk", [PURE, trade_off(2.0, sampling_rate=1.0, steps=1)], ids=["pure", "normal"]
)
def test_the_recursion_solves_the_linear_program(
    risk: AttackRisk, guesses: int, right: int
) -> None:
    expected = largest_tail(risk, 20, guesses, right)
    assert one_run_p_value(risk, 20, guesses, right) == pytest.approx(expected, rel=2e-3)


def test_of_pure_privacy_it_is_nearly_randomised_response() -> None:
    """The exact tail of randomised response is never understated, and hardly overstated."""
    for right in (760, 780, 800):
        tail = float(stats.binom.sf(right - 1, 1000, math.e / (1 + math.e)))
        assert 1 <= one_run_p_value(PURE, 1000, 1000, right) / tail < 4


def steinke(m: int, r: int, v: int, delta: float, level: float) -> float:
    """The bound on epsilon of arXiv 2305.08846, from an (ε, δ) alone."""

    def p_value(epsilon: float) -> float:
        law = stats.binom(r, 1 / (1 + math.exp(-epsilon)))
        below = np.cumsum(law.pmf(np.arange(v - 1, -1, -1))) / np.arange(1, v + 1)
        return float(law.sf(v - 1) + 2 * m * delta * below.max())

    return float(optimize.bisect(lambda e: p_value(e) - level, 0, 20)) if p_value(0) < level else 0


def test_bounds_on_a_normal_mechanism_hold_and_are_far_above_those_of_one_epsilon() -> None:
    """m canaries, each with noise of its own: two normal laws that are 1 apart; ε is 4.38."""
    m, g, true = 500, 100, trade_off(1.0, sampling_rate=1.0, steps=1)
    rng, rights = np.random.default_rng(3), []
    for _ in range(300):
        coins = rng.random(m) < 0.5
        order = np.argsort(coins + rng.standard_normal(m))
        rights.append(int((~coins[order[: g // 2]]).sum() + coins[order[-g // 2 :]].sum()))
    possible = {v: is_possible(true, 0.05, m, g, v) for v in set(rights)}
    assert np.mean([not possible[v] for v in rights]) <= 0.05
    usual = int(np.median(rights))
    terms: Any = {"noise_multiplier": 1.75, "sampling_rate": 1.0, "steps": 1}
    assert not is_possible(trade_off(**terms), 0.05, m, g, usual)
    assert steinke(m, g, usual, 1e-5, 0.05) < certify_epsilon(delta=1e-5, **terms) / 1.5


def step(noise: float, clipped: bool = True) -> StepUnderTest:
    def one(
        gradients: Any, *, clip: float, noise_multiplier: float, batch_size: int, rng_seed: int
    ) -> Any:
        rng = np.random.default_rng(rng_seed)
        rows = gradients[rng.random(len(gradients)) < batch_size / len(gradients)]
        if clipped:
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.maximum(1, norms / clip)
        spread = noise * noise_multiplier * clip
        return (rows.sum(0) + spread * rng.standard_normal(gradients.shape[1])) / batch_size

    return StepUnderTest(one)


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_a_correct_step_is_not_refuted_and_bounded(sampler: str) -> None:
    finding = one_run(step(1.0), Claim(sampler=sampler))
    assert finding.passed
    assert 2.5 < finding.measured["epsilon lower bound"] < finding.measured["epsilon certified"]


@pytest.mark.parametrize("broken", [step(0.05), step(1.0, clipped=False)])
def test_a_broken_step_is_refuted(broken: StepUnderTest) -> None:
    finding = one_run(broken, Claim(sampler="poisson", noise_multiplier=8.0))
    assert not finding.passed
    assert finding.measured["p-value"] < 1e-7
    assert finding.measured["epsilon lower bound"] > finding.measured["epsilon certified"]


def test_what_is_not_a_number_says_nothing() -> None:
    silent = StepUnderTest(lambda gradients, **_: np.full(gradients.shape[1], np.nan))
    finding = one_run(silent, Claim(sampler="poisson"))
    assert finding.passed
    assert finding.measured["epsilon lower bound"] < 0.5

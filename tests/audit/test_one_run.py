# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpcohort.audit import Claim, StepUnderTest, epsilon_lower_bound, one_run
from dpcohort.audit._canaries import one_run_p_value


def as_printed(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The algorithm of the paper's appendix, line by line."""
    q = 1 / (1 + math.exp(-epsilon))
    beta, alpha, total = stats.binom.sf(v - 1, r, q), 0.0, 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    return min(float(beta + alpha * delta * 2 * m), 1.0)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("guesses", "right"), [(100, 90), (40, 40), (50, 0), (200, 110)])
def test_it_is_the_papers_bound(guesses: int, right: int, epsilon: float) -> None:
    found = one_run_p_value(500, guesses, right, epsilon, 1e-5)
    assert found == pytest.approx(as_printed(500, guesses, right, epsilon, 1e-5), rel=1e-9)


def test_randomised_response_is_bounded_by_its_epsilon() -> None:
    """A mechanism that is exactly 1-private gets a bound above 1 in at most 5 % of audits."""
    rng = np.random.default_rng(0)
    right = rng.binomial(1000, math.e / (1 + math.e), size=400)
    refuted = [one_run_p_value(1000, 1000, int(v), 1.0, 0.0) < 0.05 for v in right]
    assert np.mean(refuted) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert 0.8 < epsilon_lower_bound(1000, 1000, int(np.median(right)), 0.0, 0.05) < 1


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
    assert 0.5 < finding.measured["epsilon lower bound"] < finding.measured["epsilon certified"]


@pytest.mark.parametrize("broken", [step(0.05), step(1.0, clipped=False)])
def test_a_broken_step_is_refuted(broken: StepUnderTest) -> None:
    finding = one_run(broken, Claim(sampler="poisson", noise_multiplier=8.0))
    assert not finding.passed
    assert finding.measured["epsilon lower bound"] > finding.measured["epsilon certified"]


def test_what_is_not_a_number_says_nothing() -> None:
    silent = StepUnderTest(lambda gradients, **_: np.full(gradients.shape[1], np.nan))
    assert one_run(silent, Claim(sampler="poisson")).passed

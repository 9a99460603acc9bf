# SPDX-License-Identifier: Apache-2.0
"""Rules to compare with: uniform, unbiased, and those that look at budgets alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection._rules import (
    BestThreshold,
    EpsilonProportional,
    MinimumEpsilon,
    Threshold,
    Unbiased,
    Uniform,
)


def test_everybody_is_equally_likely(problem):
    chosen = Uniform().select(problem)
    assert chosen.probabilities.tolist() == [0.25] * 4
    assert chosen.bias == pytest.approx(0.4)


def test_probabilities_are_the_sizes_whatever_the_budgets(problem, private_problem):
    for one in (problem, private_problem):
        chosen = Unbiased().select(one)
        assert np.array_equal(chosen.probabilities, one.unbiased)
        assert chosen.bias == 0.0
        assert chosen.gap > 0.5


def test_public_clients_count_as_the_largest_epsilon_unless_told(problem):
    assert EpsilonProportional().select(problem).probabilities == pytest.approx(
        np.array([0.5, 1, 4, 4]) / 9.5
    )
    told = EpsilonProportional(public_epsilon=10.0).select(problem)
    assert told.probabilities == pytest.approx(np.array([0.5, 1, 4, 10]) / 15.5)
    assert told.settings == {"public_epsilon": 10.0}


def test_everybody_is_noised_like_the_strictest(problem, private_problem):
    rule = MinimumEpsilon()
    assert np.array_equal(rule.select(problem).probabilities, problem.unbiased)
    assert np.array_equal(rule.effective_epsilon(problem), [0.5, 0.5, 0.5, np.nan], equal_nan=True)
    assert rule.effective_epsilon(private_problem).tolist() == [0.5] * 4


def test_only_large_enough_budgets_and_public_clients_take_part(problem):
    chosen = Threshold(threshold=1.0).select(problem)
    assert chosen.probabilities == pytest.approx([0, 2 / 9, 3 / 9, 4 / 9])
    assert Threshold(threshold=100.0).select(problem).probabilities.tolist() == [0, 0, 0, 1]
    assert chosen.settings == {"threshold": 1.0}


def test_nobody_left_names_the_largest_epsilon(private_problem):
    with pytest.raises(InputError, match=r"threshold = 5.0 .*largest epsilon .* is 4\."):
        Threshold(threshold=5.0).select(private_problem)


@pytest.mark.parametrize("seed", range(6))
def test_no_threshold_is_better(make_problem, seed):
    rng = np.random.default_rng(seed)
    size = 30
    u = rng.uniform(0.5, 1.5, size)
    epsilon = rng.choice([0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0], size)  # ties among them
    public = rng.random(size) < (0.1 if seed % 2 else 0.0)
    noise = np.where(public, 0.0, rng.uniform(0.5, 2.0, size) / epsilon**2)
    problem = make_problem(
        unbiased=u / u.sum(),
        epsilon=np.where(public, np.nan, epsilon),
        public=public,
        noise_costs=noise,
        linear_costs=0.01 * noise if seed % 3 else np.zeros(size),
    )
    chosen = BestThreshold().select(problem)
    tried = [0.01, *np.unique(epsilon[~public])]
    if public.any():
        tried.append(100.0)
    objectives = [Threshold(threshold=float(t)).select(problem).objective for t in tried]
    assert chosen.objective == pytest.approx(min(objectives), rel=1e-12)
    found = BestThreshold().threshold(problem)
    kept = public | (epsilon >= found)
    assert np.array_equal(chosen.probabilities > 0, kept)


def test_a_client_of_infinite_cost_is_left_out(make_problem):
    problem = make_problem(noise_costs=np.array([np.inf, 10.0, 1.0, 0.0]))
    assert BestThreshold().threshold(problem) > 0.5
    assert math.isfinite(BestThreshold().select(problem).objective)


def test_public_clients_without_records_do_not_stand_alone(make_problem):
    problem = make_problem(unbiased=np.array([0.2, 0.3, 0.5, 0.0]))
    chosen = BestThreshold(eta=1e9).select(problem)
    assert chosen.probabilities.sum() == pytest.approx(1.0)
    assert chosen.probabilities.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_of_equally_good_thresholds_the_one_that_keeps_most_is_taken(make_problem):
    # The client of epsilon 0.5 has no records, so it changes no objective.
    problem = make_problem(unbiased=np.array([0.0, 0.3, 0.3, 0.4]))
    assert BestThreshold(eta=0.0).threshold(problem) == 0.5


@pytest.mark.parametrize("eta", [-1.0, "automatic"])
def test_a_bad_eta_is_refused(eta):
    with pytest.raises(InputError, match="eta"):
        BestThreshold(eta=eta)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection.rules import BestThreshold, Threshold


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


def test_without_weight_on_the_noise_everybody_stays(private_problem):
    rule = BestThreshold(eta=0.0)
    assert rule.threshold(private_problem) == 0.5
    chosen = rule.select(private_problem)
    assert chosen.probabilities == pytest.approx(private_problem.unbiased, abs=1e-15)
    assert chosen.objective == pytest.approx(0.0, abs=1e-15)


def test_with_all_weight_on_the_noise_only_public_clients_stay(problem):
    rule = BestThreshold(eta=1e12)
    assert rule.threshold(problem) == math.inf
    assert rule.select(problem).probabilities.tolist() == [0.0, 0.0, 0.0, 1.0]


def test_equal_budgets_leave_no_choice(make_problem):
    problem = make_problem(epsilon=np.full(4, 2.0), public=np.zeros(4, dtype=bool))
    assert BestThreshold(eta=1e6).select(problem).probabilities == pytest.approx(problem.unbiased)


def test_a_client_of_infinite_cost_is_left_out(make_problem):
    problem = make_problem(noise_costs=np.array([np.inf, 10.0, 1.0, 0.0]))
    assert BestThreshold().threshold(problem) > 0.5
    assert math.isfinite(BestThreshold().select(problem).objective)


def test_one_client_and_all_public(make_problem):
    alone = make_problem(
        unbiased=np.ones(1), epsilon=np.ones(1), public=np.zeros(1, dtype=bool),
        noise_costs=np.ones(1), linear_costs=np.zeros(1),
    )  # fmt: skip
    assert BestThreshold().select(alone).probabilities.tolist() == [1.0]
    everybody = make_problem(
        epsilon=np.full(4, np.nan), public=np.ones(4, dtype=bool), noise_costs=np.zeros(4)
    )
    chosen = BestThreshold().select(everybody)
    assert chosen.probabilities == pytest.approx(everybody.unbiased)


def test_public_clients_without_records_do_not_stand_alone(make_problem):
    problem = make_problem(unbiased=np.array([0.2, 0.3, 0.5, 0.0]))
    chosen = BestThreshold(eta=1e9).select(problem)
    assert chosen.probabilities.sum() == pytest.approx(1.0)
    assert chosen.probabilities.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_of_equally_good_thresholds_the_one_that_keeps_most_is_taken(make_problem):
    # The client of epsilon 0.5 has no records, so it changes no objective.
    problem = make_problem(unbiased=np.array([0.0, 0.3, 0.3, 0.4]))
    assert BestThreshold(eta=0.0).threshold(problem) == 0.5


def test_the_order_of_clients_does_not_matter(make_problem):
    problem = make_problem(noise_costs=np.array([4000.0, 10.0, 1.0, 0.0]))
    order = np.array([2, 0, 3, 1])
    columns = ("unbiased", "epsilon", "public", "noise_costs", "linear_costs")
    mixed = make_problem(**{name: getattr(problem, name)[order] for name in columns})
    rule = BestThreshold(eta=0.5)
    expected = rule.select(problem).probabilities[order]
    assert np.count_nonzero(expected) == 3
    assert rule.select(mixed).probabilities == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("eta", [-1.0, "automatic"])
def test_a_bad_eta_is_refused(eta):
    with pytest.raises(InputError, match="eta"):
        BestThreshold(eta=eta)

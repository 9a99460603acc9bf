# SPDX-License-Identifier: Apache-2.0
"""Rules to compare with: uniform, unbiased, and those that look at budgets alone."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.errors import InputError
from dpcohort.selection.problem import PlannedRule
from dpcohort.selection.rules import (
    BestThreshold,
    EpsilonProportional,
    GradientBound,
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


def test_everybody_public_is_everybody_equal(make_problem):
    problem = make_problem(
        epsilon=np.full(4, np.nan), public=np.ones(4, dtype=bool), noise_costs=np.zeros(4)
    )
    assert EpsilonProportional().select(problem).probabilities == pytest.approx([0.25] * 4)


def test_enormous_epsilons_do_not_overflow(make_problem):
    problem = make_problem(
        epsilon=np.array([1e308, 1e308, 5e307, 1e308]), public=np.zeros(4, dtype=bool)
    )
    p = EpsilonProportional().select(problem).probabilities
    assert p == pytest.approx(np.array([2, 2, 1, 2]) / 7)


def test_everybody_is_noised_like_the_strictest(problem, private_problem):
    rule = MinimumEpsilon()
    assert np.array_equal(rule.select(problem).probabilities, problem.unbiased)
    assert np.array_equal(rule.effective_epsilon(problem), [0.5, 0.5, 0.5, np.nan], equal_nan=True)
    assert rule.effective_epsilon(private_problem).tolist() == [0.5] * 4


def test_public_clients_stay_public(make_problem):
    problem = make_problem(
        epsilon=np.full(4, np.nan), public=np.ones(4, dtype=bool), noise_costs=np.zeros(4)
    )
    assert np.isnan(MinimumEpsilon().effective_epsilon(problem)).all()


def test_only_large_enough_budgets_and_public_clients_take_part(problem):
    chosen = Threshold(threshold=1.0).select(problem)
    assert chosen.probabilities == pytest.approx([0, 2 / 9, 3 / 9, 4 / 9])
    assert Threshold(threshold=100.0).select(problem).probabilities.tolist() == [0, 0, 0, 1]
    assert chosen.settings == {"threshold": 1.0}


def test_nobody_left_names_the_largest_epsilon(private_problem):
    with pytest.raises(InputError, match=r"threshold = 5.0 .*largest epsilon .* is 4\."):
        Threshold(threshold=5.0).select(private_problem)


@pytest.mark.parametrize("seed", range(12))
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


BOUNDS = (4.0, 1.0, 2.0, 0.5)


def test_a_hand_computed_case(problem):
    rule = GradientBound(bounds=BOUNDS)
    assert isinstance(rule, PlannedRule)
    chosen = rule.select(problem)
    # 0.1 * 4, 0.2 * 1, 0.3 * 2, 0.4 * 0.5, divided by their sum 1.4.
    assert chosen.probabilities == pytest.approx(np.array([0.4, 0.2, 0.6, 0.2]) / 1.4)
    assert chosen.rule == "gradient-bound"
    again = GradientBound(**json.loads(json.dumps(dict(chosen.settings)))).select(problem)
    assert np.array_equal(again.probabilities, chosen.probabilities)


def test_the_compensated_sum_has_the_least_variance(problem):
    mass = (problem.unbiased * np.array(BOUNDS)) ** 2
    best = GradientBound(bounds=BOUNDS).select(problem).probabilities
    rng = np.random.default_rng(0)
    for _ in range(100):
        other = rng.dirichlet(np.ones(4))
        assert (mass / best).sum() <= (mass / other).sum() * (1 + 1e-12)


def test_the_time_to_a_variance_is_least(problem):
    times = np.array([1.0, 4.0, 9.0, 0.25])
    rule = GradientBound(bounds=BOUNDS, round_times=tuple(times))
    best = rule.select(problem).probabilities
    # 0.1 * 4 / 1, 0.2 * 1 / 2, 0.3 * 2 / 3, 0.4 * 0.5 / 0.5, divided by their sum 1.1.
    assert best == pytest.approx(np.array([0.4, 0.1, 0.2, 0.4]) / 1.1)
    mass = (problem.unbiased * np.array(BOUNDS)) ** 2
    rng = np.random.default_rng(0)
    for _ in range(100):
        other = rng.dirichlet(np.ones(4))
        least, found = ((times @ p) * (mass / p).sum() for p in (best, other))
        assert least <= found * (1 + 1e-12)


@pytest.mark.parametrize("bounds", [None, (3.0,) * 4, (1e308,) * 4])
def test_equal_bounds_are_unbiased_selection(problem, bounds):
    chosen = GradientBound(bounds=bounds).select(problem)
    assert chosen.probabilities == pytest.approx(problem.unbiased, abs=1e-15)


def test_a_plan_takes_it_as_an_object():
    clients = Population.from_arrays(sizes=[200, 200], epsilon=[1.0, 2.0], delta=1e-5)
    training = Training(rounds=4, cohort_size=2, batch_size=20, dimension=10)
    plan = make_plan(clients, training, selection=GradientBound(bounds=(3.0, 1.0)), seed=1)
    assert plan.selection.probabilities.tolist() == [0.75, 0.25]
    assert plan.rule == "gradient-bound"
    # What is asked of the plan later makes the rule again from its name and settings.
    assert plan.explain("client-0").larger_budget.probability == 0.75


@pytest.mark.parametrize("bounds", [(1.0, 2.0), (1.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, np.inf)])
def test_bad_bounds_and_times_are_refused(problem, bounds):
    with pytest.raises(InputError, match="bounds"):
        GradientBound(bounds=bounds).select(problem)
    with pytest.raises(InputError, match="round_times"):
        GradientBound(round_times=bounds).select(problem)


def test_a_configuration_takes_a_bound_for_each_client():
    from dpcohort.config import loads_config
    from dpcohort.runs.configured import configured_plan

    text = (
        "[population]\ncount = 2\nsize = 200\nepsilon = 1.0\n"
        "[training]\nrounds = 4\ncohort_size = 2\nbatch_size = 20\n"
        '[selection]\nrule = "gradient-bound"\nbounds = {}\n'
    )
    plan = configured_plan(loads_config(text.format("[3, 1]")))
    assert plan.selection.probabilities.tolist() == [0.75, 0.25]
    with pytest.raises(InputError, match=r"line 11: selection.bounds\[1\] = -1"):
        loads_config(text.format("[3, -1]"))
    with pytest.raises(InputError, match=r"shape of bounds = \(3,\)"):
        configured_plan(loads_config(text.format("[3, 1, 1]")))

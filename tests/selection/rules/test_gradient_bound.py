# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.errors import InputError
from dpcohort.selection.problem import PlannedRule
from dpcohort.selection.rules import GradientBound

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
    assert plan.selection.rule == "gradient-bound"
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
    from dpcohort.runs.configured_plan import configured_plan

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

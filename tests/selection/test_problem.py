# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection import (
    PlannedRule,
    SelectionProblem,
    evaluated,
    exact_costs,
    paper_costs,
    resolve_eta,
    selected,
    solve_selection,
)
from dpcohort.selection._problem import calibrated_epsilon


def _problem(**changes):
    given = {
        "unbiased": np.array([0.2, 0.3, 0.5]),
        "epsilon": np.array([1.0, 4.0, np.nan]),
        "public": np.array([False, False, True]),
        "noise_costs": np.array([8.0, 2.0, 0.0]),
        "linear_costs": np.zeros(3),
        "total_steps": 25,
        "smoothness": 2.0,
    }
    return SelectionProblem(**{**given, **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unbiased": np.array([0.2, 0.3, 0.4])}, "sum of unbiased"),
        ({"epsilon": np.array([1.0, 4.0])}, "shape of epsilon"),
        ({"epsilon": np.array([1.0, np.nan, np.nan])}, r"epsilon\[1\] = nan"),
        ({"epsilon": np.array([1.0, 0.0, np.nan])}, r"epsilon\[1\] = 0.0"),
        ({"public": np.array([0, 0, 1])}, "public"),
        ({"noise_costs": np.array([8.0, -2.0, 0.0])}, r"noise_costs\[1\]"),
        ({"linear_costs": np.array([0.0, np.nan, 0.0])}, r"linear_costs\[1\]"),
        ({"total_steps": 0}, "total_steps"),
        ({"smoothness": 0.0}, "smoothness"),
    ],
)
def test_bad_problems_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        _problem(**change)


def test_any_probabilities_are_measured_against_the_optimum():
    problem = _problem()
    noise = 20.0 * problem.noise_costs
    optimum = solve_selection(problem.unbiased, noise)
    best = evaluated("mine", optimum.probabilities, problem, settings={})
    assert best.eta == 20.0
    assert best.objective == optimum.objective
    assert best.gap < 1e-13
    worse = evaluated("mine", problem.unbiased, problem, settings={}, eta=20.0)
    assert worse.lower_bound == optimum.lower_bound
    assert worse.gap == pytest.approx(
        math.sqrt((noise * problem.unbiased**2).sum()) - optimum.objective
    )
    assert worse.bias == 0.0
    assert best.bias == pytest.approx(np.abs(optimum.probabilities - problem.unbiased).sum())


def test_drawing_a_client_with_infinite_cost_is_infinitely_bad():
    problem = _problem(noise_costs=np.array([math.inf, 2.0, 0.0]))
    drawn = evaluated("mine", problem.unbiased, problem, settings={})
    assert (drawn.objective, drawn.gap) == (math.inf, math.inf)
    assert math.isfinite(drawn.lower_bound)
    without = evaluated("mine", np.array([0.0, 0.4, 0.6]), problem, settings={})
    assert math.isfinite(without.objective)
    linear = _problem(linear_costs=np.array([math.inf, 0.0, 0.0]))
    assert evaluated("mine", linear.unbiased, linear, settings={}).objective == math.inf
    assert math.isfinite(
        evaluated("mine", np.array([0.0, 0.4, 0.6]), linear, settings={}).objective
    )


def test_exact_costs_are_what_a_schedule_adds():
    """Monte Carlo over whole schedules of independent draws (the derivation in ``exact_costs``)."""
    rng = np.random.default_rng(0)
    p = np.array([0.5, 0.3, 0.15, 0.05])
    level, floor = np.array([0.2, 1.0, 3.0, 10.0]), np.array([0.0, 2.0, 5.0, 1.0])
    rounds, cohort, local_steps, dimension = 6, 4, 3, 7
    draws, runs = rounds * cohort, 40_000
    drawn = rng.choice(4, size=(runs, draws), p=p)
    counts = np.stack([(drawn == k).sum(axis=1) for k in range(4)], axis=1)
    variance = floor + level * local_steps * counts  # per draw and coordinate, in units of C^2
    per_draw = np.take_along_axis(variance, drawn, axis=1)
    # n_t is the mean of the cohort's noises: sum of their variances over cohort^2, D coordinates.
    per_round = dimension * per_draw.reshape(runs, rounds, cohort).sum(axis=2) / cohort**2
    samples = per_round.mean(axis=1)
    noise, linear = exact_costs(
        level, floor, dimension=dimension, total_draws=draws, local_steps=local_steps
    )
    expected = rounds * local_steps * (noise * p**2 + linear * p).sum()
    error = samples.std() / math.sqrt(runs)
    assert abs(samples.mean() - expected) < 4 * error
    # The paper's mean-field formula is measurably lower.
    paper = rounds * local_steps * (paper_costs(level, dimension=dimension)[0] * p**2).sum()
    assert samples.mean() - paper > 20 * error


def test_exact_costs_with_one_draw_are_linear_and_keep_infinities():
    noise, linear = exact_costs(
        [2.0, math.inf], [1.0, 0.0], dimension=3, total_draws=1, local_steps=4
    )
    assert noise.tolist() == [0.0, math.inf]
    assert linear.tolist() == [3 * (2.0 + 0.25), math.inf]
    with pytest.raises(InputError, match="shape of noise_floor"):
        exact_costs([1.0, 2.0], [1.0], dimension=3, total_draws=1, local_steps=4)


class _Own(PlannedRule):
    """Gives back what it is told to."""

    name = "own"

    def __init__(self, answer):
        self.answer = answer

    def select(self, problem):
        return self.answer(problem)


def _changed(problem, change):
    p = problem.unbiased.copy()
    change(p)
    return evaluated("own", p, problem, settings={})


def _set(index, value):
    return lambda p: p.__setitem__(index, value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda problem: _changed(problem, _set(0, np.nan)), "'own'.*finite and at least 0"),
        (lambda problem: _changed(problem, _set(0, -0.1)), "'own'.*finite and at least 0"),
        (lambda problem: _changed(problem, _set(0, 5.0)), "'own'.*sum to 1"),
        (lambda problem: evaluated("own", problem.unbiased[1:], problem, settings={}),
         "'own'.*each of the 3 clients"),
        (lambda problem: evaluated("own", list(problem.unbiased), problem, settings={}),
         "'own'.*float array"),
        (lambda problem: evaluated("own", problem.unbiased, problem, settings={"f": print}),
         "setting 'f' of the selection rule 'own'"),
        (lambda problem: problem.unbiased, "_Own.select gave back a ndarray"),
        (lambda problem: None, "_Own.select gave back a NoneType"),
        (lambda problem: {}["oops"], "_Own failed in select: KeyError: 'oops'"),
    ],
    ids=["nan", "negative", "sum", "short", "list", "settings", "array", "none", "raises"],
)  # fmt: skip
def test_a_rule_of_ones_own_that_is_wrong_is_named(answer, words):
    with pytest.raises(InputError, match=words):
        selected(_Own(answer), _three())


@pytest.mark.parametrize("epsilon", [[1.0, 1.0], [1.0, 0.0, 1.0], [1.0, np.nan, 1.0]])
def test_a_rule_of_ones_own_calibrates_every_client_to_a_budget(epsilon):
    rule = _Own(None)
    rule.effective_epsilon = lambda problem: epsilon
    with pytest.raises(InputError, match=r"_Own.effective_epsilon.*each of the 3 clients"):
        calibrated_epsilon(rule, _three())


@pytest.mark.parametrize(
    "rule", [None, "unbiased", 3, _Own], ids=["none", "name", "number", "class"]
)
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(InputError, match=r"^selection = .*an object with name, select"):
        selected(rule, _three())


def _three():
    return SelectionProblem(
        unbiased=np.array([0.5, 0.25, 0.25]),
        epsilon=np.ones(3),
        public=np.zeros(3, dtype=bool),
        noise_costs=np.ones(3),
        linear_costs=np.zeros(3),
        total_steps=10,
        smoothness=1.0,
    )


def test_auto_is_the_weight_of_theorem_two():
    """Theorem 2 adds 2 L sqrt(T) sum p^2 D V under the root."""
    assert resolve_eta("auto", total_steps=400, smoothness=0.5) == 20.0
    assert resolve_eta(3, total_steps=400, smoothness=0.5) == 3.0
    assert resolve_eta(0.0, total_steps=1, smoothness=1.0) == 0.0


@pytest.mark.parametrize("eta", ["Auto", "", -1.0, math.nan, math.inf, None, True])
def test_anything_else_is_refused(eta):
    with pytest.raises(InputError, match="eta"):
        resolve_eta(eta, total_steps=1, smoothness=1.0)

# SPDX-License-Identifier: Apache-2.0
"""Problem 1 solved: against 60-digit arithmetic, and by counting as by sorting."""

from __future__ import annotations

import math
import warnings

import cvxpy
import numpy as np
import pytest
from scipy.optimize import brentq

from dpcohort.errors import InputError
from dpcohort.selection import _solver as solver
from dpcohort.selection import solve_selection
from dpcohort.selection._instance import Costs
from dpcohort.selection._solver import Decided, SortedCosts, find_thresholds


def _checked_against(reference, solution, instance):
    """What every answer has to satisfy, given the optimum in 60 digits."""
    optimum = reference.objective
    scale = 1.0 + float(optimum)
    assert reference.proof < 1e-30 * scale
    assert abs(float(solution.objective - optimum)) <= 1e-12 * scale
    assert solution.lower_bound <= optimum
    assert solution.gap >= solution.objective - optimum
    assert solution.gap <= 1e-10 * scale
    p = solution.probabilities
    assert abs(p.sum() - 1.0) < 1e-13
    assert (p >= (0.0 if instance.floor is None else instance.floor)).all()
    assert (p <= (1.0 + 1e-15 if instance.cap is None else instance.cap)).all()
    assert (p[np.isinf(instance.a)] == 0.0).all()


def test_three_hundred_instances_in_sixty_digits(instance, optimum):
    for seed in range(300):
        one = instance(np.random.default_rng(seed))
        solution = solve_selection(one.u, one.a, clipping_gap=one.g0)
        reference = optimum(one)
        _checked_against(reference, solution, one)
        # Where p is unique (at most one public client) it is right to the last digits as well.
        if (one.a == 0).sum() <= 1:
            found = np.array([float(x) for x in reference.probabilities])
            assert np.abs(found - solution.probabilities).sum() < 1e-11


def test_linear_costs_floors_and_caps_in_sixty_digits(instance, optimum):
    for seed in range(200):
        one = instance(np.random.default_rng(seed), bounded=True)
        _checked_against(optimum(one), solve_selection(one.u, one.a, **one.options), one)


def _value(problem):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "may be inaccurate" at these tolerances
        return problem.solve(
            solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )


@pytest.mark.parametrize("seed", range(3))
def test_linear_costs_agree_with_a_conic_solver(seed):
    """F is not convex here, but F* is where the convex problem min Q + 2 f G is worth f^2."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 40))
    u = rng.dirichlet(np.ones(n))
    a, b = 10.0 ** rng.uniform(-1, 3, n), 10.0 ** rng.uniform(-2, 1, n)
    cap = np.minimum(3 * u + 1 / n, 1.0)
    f = solve_selection(u, a, linear_costs=b, cap=cap).objective
    p = cvxpy.Variable(n)
    cost = cvxpy.sum(cvxpy.multiply(a, cvxpy.square(p))) + b @ p + 2 * f * cvxpy.norm1(p - u)
    problem = cvxpy.Problem(cvxpy.Minimize(cost), [cvxpy.sum(p) == 1, p >= 0, p <= cap])
    assert _value(problem) == pytest.approx(f * f, rel=1e-8)


def _least(cost, draws):
    """The best p_2 for u = (1/2, 1/2) and costs (0, a_2), from the derivative of F in p_2."""

    def slope(p):
        bias = 2 * (0.5 - p)
        root = math.sqrt(bias**2 + cost * ((1 - 1 / draws) * p * p + p / draws))
        return -2 * (bias + root) + cost * ((1 - 1 / draws) * p + 1 / (2 * draws))

    return 0.0 if slope(0.0) >= 0 else brentq(slope, 0.0, 0.5, xtol=1e-16, rtol=1e-14)


@pytest.mark.parametrize("cost", [100.0, 790.0, 799.9, 800.0, 810.0, 1e9])
def test_the_noise_of_a_real_schedule_can_exclude_a_client(cost):
    """With the noise of n draws, p_k = 0 is optimal if and only if a_k / (2 n) >= y."""
    draws = 100
    noise, linear = np.array([0.0, cost * (1 - 1 / draws)]), np.array([0.0, cost / draws])
    p = solve_selection([0.5, 0.5], noise, linear_costs=linear).probabilities
    assert p[1] == pytest.approx(_least(cost, draws), rel=1e-8, abs=1e-15)
    # Without client 2, F = 2 and y = 4: excluded from a_2 = 8 n on.
    assert (p[1] == 0.0) == (cost >= 800.0)


def test_a_rounding_above_the_threshold_nobody_moves_by_more_than_a_rounding():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        u, c = rng.dirichlet(np.ones(6)), 10.0 ** rng.uniform(0, 2, 6)
        eta = solver.unbiased_threshold(Costs(u, c)) * (1 + 2.0**-52)
        solution = solve_selection(u, eta * c)
        assert np.abs(solution.probabilities - u).sum() < 1e-14
        assert solution.gap < 1e-13 * (1 + solution.objective)


def test_public_clients_share_what_moves_in_proportion_to_u():
    u = np.array([0.1, 0.3, 0.0, 0.6])
    for options in ({}, {"cap": 1.0}, {"linear_costs": np.zeros(4)}):
        p = solve_selection(u, [0.0, 0.0, 0.0, 1e4], **options).probabilities
        assert p[1] == pytest.approx(3 * p[0], rel=1e-12)
        assert p[2] == 0.0
    weightless = solve_selection([0.0, 0.0, 1.0], [0.0, 0.0, 1e4]).probabilities
    assert weightless[0] == weightless[1] > 0.4


def test_edges():
    assert solve_selection([1.0], [7.0]).probabilities.tolist() == [1.0]
    everybody_public = solve_selection([0.3, 0.7], [0.0, 0.0])
    assert everybody_public.probabilities.tolist() == [0.3, 0.7]
    assert (everybody_public.objective, everybody_public.gap) == (0.0, 0.0)
    only_one_left = solve_selection([0.3, 0.7], [5.0, math.inf])
    assert only_one_left.probabilities.tolist() == [1.0, 0.0]
    assert only_one_left.objective == pytest.approx(1.4 + math.sqrt(1.4**2 + 5.0))
    public_and_barred = solve_selection([0.2, 0.3, 0.5], [0.0, 0.0, math.inf])
    assert public_and_barred.probabilities == pytest.approx([0.4, 0.6, 0.0])
    assert public_and_barred.objective == pytest.approx(2.0)
    unused = solve_selection([1.0, 0.0], [5.0, math.inf])
    assert unused.probabilities.tolist() == [1.0, 0.0]


def test_a_floor_under_an_infinite_cost_makes_the_objective_infinite():
    solution = solve_selection([0.5, 0.5], [1.0, math.inf], floor=[0.0, 0.25])
    assert solution.probabilities == pytest.approx([0.75, 0.25])
    assert (solution.objective, solution.lower_bound, solution.gap) == (math.inf, math.inf, 0.0)
    harmless = solve_selection([0.5, 0.5], [1.0, math.inf], floor=[0.25, 0.0])
    assert math.isfinite(harmless.objective)


def test_unbiased_may_be_scaled_a_little_but_not_more():
    solution = solve_selection([0.5, 0.5 + 1e-10], [1.0, 1.0])
    assert abs(solution.probabilities.sum() - 1) < 1e-15
    with pytest.raises(InputError, match=r"sum of unbiased = 1\.01"):
        solve_selection([0.5, 0.51], [1.0, 1.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unbiased": []}, "unbiased"),
        ({"unbiased": [[0.5, 0.5]]}, "unbiased"),
        ({"unbiased": [1.5, -0.5]}, r"unbiased\[1\] = -0.5"),
        ({"unbiased": [math.nan, 1.0]}, r"unbiased\[0\] = nan"),
        ({"unbiased": [math.inf, 1.0]}, r"unbiased\[0\] = inf"),
        ({"unbiased": ["a", "b"]}, "numbers only"),
        ({"noise_costs": [1.0, -2.0]}, r"noise_costs\[1\] = -2.0"),
        ({"noise_costs": [math.nan, 1.0]}, r"noise_costs\[0\] = nan"),
        ({"noise_costs": [1.0]}, r"shape of noise_costs = \(1,\)"),
        ({"noise_costs": "many"}, "numbers only"),
        ({"noise_costs": [math.inf, math.inf]}, "all 2 clients"),
        ({"linear_costs": [1.0, -1.0]}, r"linear_costs\[1\]"),
        ({"linear_costs": [1.0]}, "shape of linear_costs"),
        ({"linear_costs": [math.inf, math.inf]}, "infinite costs"),
        ({"floor": 0.6}, r"floor = 1.2 .*at most 1"),
        ({"floor": [0.1, -0.1]}, r"floor\[1\]"),
        ({"floor": [0.1]}, "shape of floor"),
        ({"floor": math.inf}, "floor"),
        ({"cap": 0.4}, r"cap = 0.8 .*at least 1"),
        ({"cap": [0.9, math.nan]}, r"cap\[1\]"),
        ({"floor": [0.6, 0.0], "cap": [0.5, 0.9]}, r"floor\[0\] = 0.6 .*cap\[0\] = 0.5"),
        ({"noise_costs": [1.0, math.inf], "cap": 0.9}, "1 of 2 clients have infinite costs"),
        ({"clipping_gap": -1.0}, "clipping_gap"),
        ({"clipping_gap": math.inf}, "clipping_gap"),
    ],
)
def test_bad_input_is_named(arguments, message):
    given = {"unbiased": [0.5, 0.5], "noise_costs": [1.0, 2.0], **arguments}
    with pytest.raises(InputError, match=message):
        solve_selection(given.pop("unbiased"), given.pop("noise_costs"), **given)


def _objective(thresholds):
    return 0.5 * (thresholds[1] - thresholds[0])


def _population(rng, n):
    a = 10.0 ** rng.uniform(*(np.array([-1, 1]) * rng.choice([1, 3, 6, 12, 40, 100])), n)
    u = rng.dirichlet(np.full(n, rng.choice([0.05, 1.0, 10.0])))
    if rng.random() < 0.3:  # few distinct levels: whole classes stand at a threshold
        a, u = 10.0 ** np.round(np.log10(a)), np.full(n, 1.0 / n)
    if rng.random() < 0.3:
        u[rng.random(n) < 0.2] = 0.0
        u /= u.sum()
    return u, a


def test_counting_into_classes_finds_what_sorting_finds():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        u, a = _population(rng, int(rng.integers(2048, 6000)))
        decided = Decided(
            public=bool(rng.random() < 0.3),
            forced_mass=float(rng.choice([0.0, 0.0, 0.1])),
            clipping_gap=float(rng.choice([0.0, 0.5])),
        )
        if find_thresholds(u, a, decided) is None:
            continue
        bottom, top, _ = solver._survey(u, a)
        counted = solver._by_classes(u, a, bottom, top, decided)
        assert counted is not None
        by_sorting = SortedCosts.of(u, a, decided).thresholds()
        assert _objective(counted) == pytest.approx(_objective(by_sorting), rel=1e-13)
        assert counted[1] == pytest.approx(by_sorting[1], rel=1e-13)
        assert counted[0] == pytest.approx(by_sorting[0], rel=1e-10, abs=1e-300)

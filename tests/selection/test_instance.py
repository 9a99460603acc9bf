# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection._instance import (
    Costs,
    bounded_costs,
    certify,
    checked_bound,
    checked_costs,
    checked_unbiased,
    objective_of,
    pieces,
    scaled_costs,
)

U = np.array([0.25, 0.75])


def test_good_arrays_pass_without_a_copy():
    assert checked_unbiased(U) is U
    costs = np.array([0.0, math.inf])
    assert checked_costs("noise_costs", costs, 2) is costs


def test_infinite_costs_become_caps_at_the_floor():
    a, b = np.array([1.0, math.inf]), np.array([1.0, 1.0])
    costs, unavoidable = bounded_costs(Costs(U, a, b))
    assert costs.cap.tolist() == [1.0, 0.0]
    assert np.isfinite(costs.noise).all()
    assert not unavoidable
    costs, unavoidable = bounded_costs(Costs(U, a, b, np.array([0.0, 0.5])))
    assert costs.cap.tolist() == [1.0, 0.5]
    assert unavoidable


def test_bounds_may_be_one_number_for_all():
    assert checked_bound("floor", 0.1, U).tolist() == [0.1, 0.1]
    assert checked_bound("cap", [0.5, math.inf], U).tolist() == [0.5, math.inf]
    assert checked_bound("cap", None, U) is None
    with pytest.raises(InputError, match="shape of cap"):
        checked_bound("cap", [0.5, 0.5, 0.5], U)


def test_infinite_costs_stay_infinite_when_scaled():
    costs = np.array([2.0, math.inf, 1e300])
    assert scaled_costs(0.0, costs).tolist() == [0.0, math.inf, 0.0]
    assert scaled_costs(1e10, costs).tolist() == [2e10, math.inf, math.inf]


def _costs(one):
    return Costs(one.u, one.a, one.b, one.floor, one.cap, one.g0)


def _some_feasible(rng, one):
    """A random point of the feasible set: between floor and cap, with sum 1."""
    n = one.u.size
    low = np.zeros(n) if one.floor is None else one.floor
    high = np.ones(n) if one.cap is None else np.minimum(one.cap, 1.0)
    high = np.where(np.isinf(one.a), low, high)
    aim = rng.dirichlet(np.full(n, rng.choice([0.2, 1.0, 5.0])))
    if rng.random() < 0.3:
        aim = one.u
    left, right = -2.0, 2.0
    for _ in range(200):
        middle = 0.5 * (left + right)
        total = np.clip(aim + middle, low, high).sum()
        left, right = (middle, right) if total < 1 else (left, middle)
    return np.clip(aim + right, low, high)


@pytest.mark.parametrize("bounded", [False, True])
def test_wrong_answers_are_never_certified_beyond_the_optimum(bounded, instance, optimum):
    for seed in range(100):
        rng = np.random.default_rng([seed, bounded])
        one = instance(rng, bounded=bounded)
        best = optimum(one).objective
        costs = _costs(one)
        for _ in range(4):
            p = _some_feasible(rng, one)
            proved = certify(p, costs)
            assert proved[1] <= best
            assert proved[2] >= proved[0] - best
            assert proved[0] == objective_of(p, costs)


def test_nearly_right_answers_are_certified_nearly_right(instance, optimum):
    """The bound is within a factor of the truth, not just on the right side of it."""
    ratios = []
    for seed in range(120):
        rng = np.random.default_rng([seed, 77])
        one = instance(rng)
        reference = optimum(one)
        right = np.array([float(x) for x in reference.probabilities])
        p = 0.99 * right + 0.01 * np.where(np.isinf(one.a), 0.0, 1.0) / np.isfinite(one.a).sum()
        proved = certify(p / p.sum(), _costs(one))
        excess = float(proved[0] - reference.objective)
        if excess > 1e-6:
            ratios.append(proved[2] / excess)
    assert len(ratios) > 50
    assert np.median(ratios) < 200


def test_long_arrays_are_walked_in_pieces():
    rng = np.random.default_rng(0)
    n = 100_000
    u, p, a = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n)), rng.random(n) * n
    bias, noise = np.abs(p - u).sum(), (a * p * p).sum()
    expected = bias + math.sqrt(bias**2 + noise)
    assert objective_of(p, Costs(u, a)) == pytest.approx(expected, rel=1e-13)
    assert sum(len(range(*part.indices(n))) for part in pieces(n)) == n


def test_mass_that_is_missing_costs():
    """A bound from probabilities that do not sum to 1 allows for it."""
    costs = Costs(np.array([0.5, 0.5]), np.array([1.0, 1.0]))
    whole = certify(np.array([0.5, 0.5]), costs)
    short = certify(np.array([0.5, 0.49]), costs)
    assert short[2] > 0.005
    assert short[1] <= whole[0]


def test_nothing_to_lose_and_everything_lost():
    public = Costs(np.array([0.5, 0.5]), np.zeros(2))
    assert certify(np.array([0.5, 0.5]), public) == (0.0, 0.0, 0.0)
    barred = Costs(np.array([0.5, 0.5]), np.array([1.0, math.inf]))
    assert certify(np.array([0.5, 0.5]), barred)[0] == math.inf

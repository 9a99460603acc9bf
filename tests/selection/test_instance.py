# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.selection._instance import Costs, bounded_costs, certify, objective_of

U = np.array([0.25, 0.75])


def test_infinite_costs_become_caps_at_the_floor():
    a, b = np.array([1.0, math.inf]), np.array([1.0, 1.0])
    costs, unavoidable = bounded_costs(Costs(U, a, b))
    assert costs.cap.tolist() == [1.0, 0.0]
    assert np.isfinite(costs.noise).all()
    assert not unavoidable
    costs, unavoidable = bounded_costs(Costs(U, a, b, np.array([0.0, 0.5])))
    assert costs.cap.tolist() == [1.0, 0.5]
    assert unavoidable


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

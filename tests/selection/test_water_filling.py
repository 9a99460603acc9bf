# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.selection import solve_selection
from dpcohort.selection._instance import Costs, certify, fill, fill_to_gap, solve_by_filling


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_the_closed_form(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 400))
    u, a = rng.dirichlet(np.ones(n)), 10.0 ** rng.uniform(-6, 6, n)
    a[rng.random(n) < 0.1] = 0.0
    g0 = float(rng.choice([0.0, 0.2]))
    filled = solve_by_filling(Costs(u, a, clipping_gap=g0))
    closed = solve_selection(u, a, clipping_gap=g0)
    assert np.abs(filled[0] - closed.probabilities).sum() < 1e-11
    proved = certify(filled[0], Costs(u, a, clipping_gap=g0))
    assert proved[2] < 1e-12 * (1 + proved[0])


def test_constant_marginal_costs_are_filled_in_order():
    """With one draw in all the noise is linear: cheapest first, each up to its cap."""
    u = np.array([0.25, 0.25, 0.25, 0.25])
    costs = Costs(u, np.zeros(4), np.array([4.0, 1.0, 2.0, 3.0]))
    filled = fill(costs, np.zeros(4), np.full(4, 0.4), half_width=0.0)
    assert filled[0] == pytest.approx([0.0, 0.4, 0.4, 0.2], abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_what_free_clients_gain_is_shared_in_proportion_to_u_in_any_order(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(3, 9))
    u = rng.integers(1, 200, size) / 1.0
    u /= u.sum()
    dear = np.arange(size) == rng.integers(size)
    linear = np.where(dear, 20.0, 0.0)
    p = solve_by_filling(Costs(u, np.zeros(size), linear))[0]
    np.testing.assert_allclose(p, np.where(dear, 0.0, u) / u[~dear].sum(), rtol=1e-12)


def test_a_large_population_starts_from_a_sample():
    rng = np.random.default_rng(4)
    n = 70_000
    u = rng.uniform(0.5, 1.5, n)
    u /= u.sum()
    a = n * 10.0 ** rng.uniform(-2, 4, n)
    costs = Costs(u, a, a / 500, 0.2 * u, 3.0 * u)
    filled = solve_by_filling(costs)
    assert certify(filled[0], costs)[2] < 1e-11
    # The sample cannot be solved on its own here: its caps do not reach 1.
    tight = Costs(u, a, None, None, u * np.where(np.arange(n) % 8 == 0, 0.01, 1.3))
    assert certify(solve_by_filling(tight)[0], tight)[2] < 1e-11


@pytest.mark.parametrize("seed", range(5))
def test_gap_is_met_and_cannot_be_used_better(seed):
    rng = np.random.default_rng(seed)
    n = 30
    u, a, b = rng.dirichlet(np.ones(n)), 10.0 ** rng.uniform(-2, 4, n), rng.random(n)
    costs = Costs(u, a, b, 0.1 * u, np.minimum(4 * u + 0.02, 1.0))
    filled = fill_to_gap(costs, 0.3)
    p = filled[0]
    assert abs(np.abs(p - u).sum() - 0.3) < 1e-12
    assert abs(p.sum() - 1) < 1e-12
    assert (p >= costs.floor - 1e-17).all()
    assert (p <= costs.cap).all()
    marginal = a * p + b / 2
    raised, lowered = (p > u + 1e-12) & (p < costs.cap), (p < u - 1e-12) & (p > costs.floor)
    assert marginal[raised] == pytest.approx(filled[1], rel=1e-6)
    assert marginal[lowered] == pytest.approx(filled[2], rel=1e-6)

# SPDX-License-Identifier: Apache-2.0
"""Corollary 2: brute force over T and selections, and certificates that must hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpcohort.selection import solve_selection
from dpcohort_lab import theorems
from dpcohort_lab.theorems import Constants, best_total_steps, error_terms

UNIT = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=1)


def nonconvex_bound(constants: Constants, *, total_steps: int, **selection: Any) -> Any:
    """Theorem 2 for one selection."""
    errors = error_terms(constants, **selection)
    return theorems.nonconvex_bound(constants, errors, total_steps=total_steps)


def instance(seed: int, *, public: bool) -> tuple[Constants, dict[str, Any]]:
    """Constants and clients whose best T is mostly between 1 and a few thousand."""
    rng = np.random.default_rng([seed, public])
    clients = int(rng.integers(1, 7)) + public
    bound = float(10 ** rng.uniform(-0.5, 0.5))
    levels = 10 ** rng.uniform(-3, 1, clients)
    if public:
        levels[: int(rng.integers(1, clients))] = 0.0
    constants = Constants(
        smoothness=float(10 ** rng.uniform(-1, 0.5)),
        gradient_bound=bound,
        clip=bound * float(rng.uniform(0.2, 1.5)),
        initial_gap=float(rng.uniform(0, 5)),
        clipping_gap=float(rng.uniform(0, 0.3)) * (seed % 2),
    )
    clients_given = {
        "unbiased": rng.dirichlet(np.ones(clients)),
        "noise_levels": levels,
        "dimension": 1,
    }
    return constants, clients_given


def joint_value(constants: Constants, clients: dict[str, Any], steps: float) -> float:
    """Theorem 2 with the best selection at T, without the code under test."""
    bound = max(constants.gradient_bound, constants.clip)
    root = math.sqrt(steps)
    costs = 2 * constants.smoothness * root * clients["dimension"] * clients["noise_levels"]
    best = solve_selection(clients["unbiased"], costs, clipping_gap=constants.clipping_gap)
    start = constants.initial_gap + constants.smoothness * bound**2 / 2
    return bound / 2 * float(best.objective) + math.sqrt(start / root)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("public", [False, True])
def test_the_joint_search_against_a_grid(seed: int, public: bool) -> None:
    constants, clients = instance(seed, public=public)
    best = best_total_steps(constants, **clients)
    grid = {*range(1, 40), *(round(t) for t in np.geomspace(40, 1e10, 60))}
    least = min(joint_value(constants, clients, t) for t in grid)
    assert best.lower_bound <= least
    assert best.bound <= least * (1 + 1e-6)
    assert 0 <= best.gap <= 1e-6 * best.bound * (1 + 1e-9)
    assert best.evaluations <= 80
    if best.total_steps is None:
        assert public
        assert best.bound == best.limit
    else:
        assert best.bound < best.limit
        there = nonconvex_bound(
            constants, **clients, probabilities=best.probabilities, total_steps=best.total_steps
        )
        assert there.total == pytest.approx(best.bound, rel=1e-12)


def test_without_selection_error_the_best_t_is_closed_form() -> None:
    """G = 0: T = 4 R / (B1^2 Q), here 6 / (2 * 5e-7) with R = 1.5 and Q = 2 L G^DP."""
    best = best_total_steps(UNIT, unbiased=[1.0], noise_levels=[5e-7], dimension=1, tolerance=1e-12)
    assert best.total_steps == pytest.approx(6_000_000, rel=1e-3)


def test_two_clients_where_a_local_minimum_misleads() -> None:
    """u = (.2, .8), one public client: a local minimum 1.663 at T = 6, but 1.600 as T grows."""
    clients: dict[str, Any] = {
        "unbiased": np.array([0.2, 0.8]),
        "noise_levels": np.array([0.0, 1.0]),
        "dimension": 1,
    }
    near = [joint_value(UNIT, clients, t) for t in range(1, 13)]
    assert int(np.argmin(near)) + 1 == 6
    assert near[5] == pytest.approx(1.663, abs=5e-4)
    best = best_total_steps(UNIT, **clients)
    assert best.total_steps is None
    assert best.bound == pytest.approx(1.6, rel=1e-12)
    assert 1.6 * (1 - 1.001e-6) <= best.lower_bound <= 1.6
    np.testing.assert_array_equal(best.probabilities, [1.0, 0.0])
    assert best.vacuous
    assert best.sentence.startswith("There is no best T: the bound comes ever closer to 1.6")
    assert best_total_steps(UNIT, **clients, max_steps=12).total_steps == 6


def paper_levels(rng: np.random.Generator, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sizes as in the paper's set-up for MNIST and V_k of (equ: noise level, variance)."""
    share = rng.uniform(0.5, 1.5, epsilon.size)
    sizes = np.floor(60_000 * share / share.sum())
    rate = 128 / sizes
    amplified = np.log1p(np.expm1(epsilon) / rate)
    return sizes / sizes.sum(), 8 * np.log(math.e + rate * amplified / 1e-5) / (
        128 * amplified
    ) ** 2


@pytest.mark.parametrize(("mixture", "steps", "bound"), [(False, 1, 5.16), (True, 11, 2.158)])
def test_the_bound_is_vacuous_in_the_papers_own_setting(
    mixture: bool, steps: int, bound: float
) -> None:
    """100 clients on MNIST with L = B1 = C = 1 and the loss of guessing, ln 10."""
    rng = np.random.default_rng(2602)
    epsilon = rng.uniform(0, 1, 100)
    if mixture:
        strict = rng.random(100) < 0.3
        epsilon = np.abs(np.where(strict, rng.normal(0.5, 0.2, 100), rng.normal(10, 1, 100)))
    unbiased, levels = paper_levels(rng, epsilon)
    constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=math.log(10))
    best = best_total_steps(constants, unbiased=unbiased, noise_levels=levels, dimension=833_322)
    assert best.total_steps == steps
    assert best.bound == pytest.approx(bound, abs=5e-4)
    assert best.vacuous
    assert best.sentence.endswith("Do not choose T by it.")


def test_extreme_costs_stay_finite_and_certified() -> None:
    for level in (1e-20, 1e-40):
        tiny = best_total_steps(
            UNIT, unbiased=[0.5, 0.5], noise_levels=[level, level / 100], dimension=1
        )
        assert tiny.total_steps is not None
        assert tiny.gap <= 1e-6 * tiny.bound * (1 + 1e-9) + 1e-14  # and the solver's own gap
        assert tiny.evaluations <= 80
    huge = best_total_steps(UNIT, unbiased=[0.5, 0.5], noise_levels=[1e40, math.inf], dimension=1)
    assert huge.total_steps == 1
    assert huge.probabilities[1] == 0.0

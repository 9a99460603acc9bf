# SPDX-License-Identifier: Apache-2.0
"""Corollary 2: brute force over T and selections, and certificates that must hold."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.lab.error_terms import Constants
from dpcohort.lab.theorems import SelectionCurve, best_total_steps, nonconvex_bound
from dpcohort.selection.solver import solve_selection

UNIT = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=1)


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


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("public", [False, True])
def test_a_given_selection_against_every_t(seed: int, public: bool) -> None:
    constants, clients = instance(seed, public=public)
    p = np.random.default_rng(seed).dirichlet(np.ones(len(clients["unbiased"])))
    most = 5000
    best = best_total_steps(constants, **clients, probabilities=p, max_steps=most)
    values = [
        nonconvex_bound(constants, **clients, probabilities=p, total_steps=t).total
        for t in [*range(1, 200), *range(200, most, 97), most]
    ]
    assert best.total_steps is not None
    assert best.bound <= min(values) * (1 + 1e-14)
    assert best.lower_bound <= min(values)
    assert best.gap <= 2e-3 * best.bound  # only whole T are allowed, the certificate is for all
    there = nonconvex_bound(constants, **clients, probabilities=p, total_steps=best.total_steps)
    assert best.bound == pytest.approx(there.total, rel=1e-14)


@pytest.mark.parametrize("seed", range(6))
def test_the_whole_neighbours_of_the_root_are_worse(seed: int) -> None:
    constants, clients = instance(seed, public=False)
    p = clients["unbiased"]
    best = best_total_steps(constants, **clients, probabilities=p)
    assert best.total_steps is not None
    assert best.limit == math.inf
    for steps in {max(1, best.total_steps - 1), best.total_steps + 1}:
        other = nonconvex_bound(constants, **clients, probabilities=p, total_steps=steps).total
        assert best.bound <= other * (1 + 1e-15)


def test_without_selection_error_the_best_t_is_closed_form() -> None:
    """G = 0: T = 4 R / (B1^2 Q), here 6 / (2 * 5e-7) with R = 1.5 and Q = 2 L G^DP."""
    best = best_total_steps(
        UNIT, unbiased=[1.0], noise_levels=[5e-7], dimension=1, probabilities=[1.0]
    )
    assert best.total_steps == 6_000_000


def test_noise_that_does_not_grow_with_t_makes_training_longer() -> None:
    common: dict[str, Any] = {
        "unbiased": [0.5, 0.5],
        "noise_levels": [1e-4, 1e-4],
        "dimension": 10,
        "probabilities": [0.5, 0.5],
    }
    plain = best_total_steps(UNIT, **common)
    steady = best_total_steps(UNIT, **common, constant_noise=3.0)
    assert plain.total_steps == 6000  # 4 * 1.5 / 0.001
    assert steady.total_steps == 12_000  # R grows from 1.5 to 3
    with pytest.raises(InputError, match="constant_noise"):
        best_total_steps(UNIT, unbiased=[1.0], noise_levels=[1.0], dimension=1, constant_noise=1.0)


def test_a_noiseless_selection_has_no_best_t() -> None:
    given: dict[str, Any] = {
        "unbiased": [0.25, 0.75],
        "noise_levels": [0.0, 1.0],
        "dimension": 1,
        "probabilities": [1.0, 0.0],
    }
    best = best_total_steps(UNIT, **given)
    assert (best.total_steps, best.attained, best.bound, best.limit) == (None, False, 1.5, 1.5)
    assert best.sentence.startswith("There is no best T")
    assert best_total_steps(UNIT, **given, max_steps=77).total_steps == 77


@pytest.mark.parametrize("seed", range(6))
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("public", [False, True])
def test_the_joint_search_up_to_a_limit_against_every_t(seed: int, public: bool) -> None:
    constants, clients = instance(seed, public=public)
    best = best_total_steps(constants, **clients, max_steps=60, tolerance=1e-9)
    values = [joint_value(constants, clients, t) for t in range(1, 61)]
    assert best.total_steps is not None
    assert best.bound <= min(values) * (1 + 1e-9)
    assert best.lower_bound <= min(values) * (1 + 1e-15)
    assert values[best.total_steps - 1] == pytest.approx(best.bound, rel=1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_no_selection_at_any_t_is_below_the_certificate(seed: int) -> None:
    constants, clients = instance(seed, public=seed % 2 == 0)
    best = best_total_steps(constants, **clients)
    rng = np.random.default_rng(seed)
    for _ in range(200):
        p = rng.dirichlet(np.full(len(clients["unbiased"]), 10 ** rng.uniform(-1, 1)))
        steps = round(10 ** rng.uniform(0, 8))
        other = nonconvex_bound(constants, **clients, probabilities=p, total_steps=steps)
        assert other.total >= best.lower_bound


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
    assert best_total_steps(UNIT, **clients, max_steps=12).total_steps == 6


def test_public_clients_do_not_always_mean_training_for_ever() -> None:
    """A public client with almost no data: going on with it alone would be too biased."""
    best = best_total_steps(UNIT, unbiased=[0.01, 0.99], noise_levels=[0.0, 1e-3], dimension=1)
    assert best.total_steps is not None
    assert best.bound < best.limit < math.inf


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
    vanishing = best_total_steps(
        UNIT, unbiased=[1.0], noise_levels=[1e-300], dimension=1, probabilities=[1.0]
    )
    assert vanishing.total_steps == 10**60  # the end of the search, and the gap says so
    assert vanishing.lower_bound == 0.0 < vanishing.bound


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 1.5}, "max_steps"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": 1.0}, "tolerance"),
        ({"noise_levels": [1.0]}, "noise_levels"),
        ({"noise_levels": [math.inf, math.inf]}, "noise_levels"),
        ({"noise_levels": [math.nan, 1.0]}, "noise_levels"),
        ({"unbiased": [0.5, 0.6]}, "unbiased"),
        ({"probabilities": [1.0]}, "probabilities"),
        ({"dimension": 0}, "dimension"),
        ({"constant_noise": -1.0}, "constant_noise"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], named: str) -> None:
    good: dict[str, Any] = {"unbiased": [0.5, 0.5], "noise_levels": [1.0, 1.0], "dimension": 2}
    with pytest.raises(InputError, match=named):
        best_total_steps(UNIT, **{**good, **change})


def random_curve(seed: int) -> SelectionCurve:
    rng = np.random.default_rng(seed)
    bound, start, noise = 10 ** rng.uniform([-1, -1, -4], [1, 1, 1])
    error = float(rng.uniform(0, 1)) * (seed % 4 > 0)
    return SelectionCurve(
        gradient_bound=float(bound), start=float(start), selection_error=error, noise=float(noise)
    )


@pytest.mark.parametrize("steps", [2, 50, 10_000])
def test_the_papers_derivative_is_right(steps: int) -> None:
    """(equ: f(T)), by numerical differentiation in 40 digits."""
    with mp.workdps(40):
        b1, a, q, r = mp.mpf("1.3"), mp.mpf("0.2"), mp.mpf("0.07"), mp.mpf("2.9")

        def f(t: mp.mpf) -> mp.mpf:
            return b1 / 2 * mp.sqrt(a + q * mp.sqrt(t)) + mp.sqrt(r / mp.sqrt(t))

        t = mp.mpf(steps)
        printed = b1 / 8 * q / mp.sqrt(a + q * mp.sqrt(t)) / mp.sqrt(t)
        printed -= mp.sqrt(r) / 4 / t ** mp.mpf("1.25")
        assert mp.almosteq(mp.diff(f, t), printed, rel_eps=mp.mpf("1e-15"))


@pytest.mark.parametrize("seed", range(100))
def test_the_root_of_the_cubic_is_where_the_derivative_vanishes(seed: int) -> None:
    curve = random_curve(seed)
    low, high = curve.root_bracket()
    assert math.nextafter(low, math.inf) >= high
    with mp.workdps(40):
        b1, r, g, q = map(
            mp.mpf, (curve.gradient_bound, curve.start, curve.selection_error, curve.noise)
        )

        def slope(x: mp.mpf) -> mp.mpf:
            return b1 / 2 * q / (2 * mp.sqrt(g**2 + q * x)) - mp.sqrt(r) / (2 * x ** mp.mpf("1.5"))

        # The bracket is right up to the rounding of its own coefficients.
        assert slope(mp.mpf(low) * (1 - mp.mpf("1e-14"))) < 0
        assert slope(mp.mpf(high) * (1 + mp.mpf("1e-14"))) > 0
        coefficients = [b1**2 * q**2, 0, -4 * r * q, -4 * r * g**2]
        roots = mp.polyroots(coefficients, maxsteps=200, extraprec=200)
        positive = [z.real for z in roots if abs(z.imag) < 1e-25 and z.real > 0]
    assert len(positive) == 1
    assert low == pytest.approx(float(positive[0]), rel=1e-14)


@pytest.mark.parametrize("seed", range(100))
def test_no_whole_t_is_better(seed: int) -> None:
    curve = random_curve(seed)
    best = curve.best()
    assert best.total_steps is not None
    nearby = range(max(1, best.total_steps - 20), best.total_steps + 21)
    afar = (round(t) for t in np.geomspace(1, 1e12, 200))
    values = [sum(curve.parts(math.sqrt(t))) for t in (*nearby, *afar)]
    assert best.bound <= min(values) * (1 + 2e-14)
    assert best.lower_bound <= min(values)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("most", [1, 7, 100])
def test_the_end_of_the_allowed_range_is_exact(seed: int, most: int) -> None:
    curve = random_curve(seed)
    best = curve.best(most)
    values = [sum(curve.parts(math.sqrt(t))) for t in range(1, most + 1)]
    assert best.bound <= min(values) * (1 + 2e-14)
    assert best.lower_bound <= min(values)
    if best.total_steps == most:
        assert best.bound - best.lower_bound <= 1e-2 * best.bound


def test_without_noise_the_bound_falls_for_ever() -> None:
    curve = SelectionCurve(gradient_bound=2.0, start=1.0, selection_error=0.25, noise=0.0)
    assert curve.best().total_steps is None
    assert curve.best().bound == curve.limit == 0.5
    assert curve.best(1000).total_steps == 1000


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_noise_too_small_to_matter_ends_at_the_end_of_the_search(error: float) -> None:
    curve = SelectionCurve(gradient_bound=1.0, start=1.0, selection_error=error, noise=1e-310)
    best = curve.best()
    assert best.total_steps == 10**60
    assert best.lower_bound == pytest.approx(error, rel=1e-13)

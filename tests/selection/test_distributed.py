# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/research/distributed-noise.md, by simulation or by another solver."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Contract
from dpcohort.errors import InputError
from dpcohort.selection import (
    Pool,
    SelectionProblem,
    rule_from_settings,
    solve_distributed,
    solve_selection,
)
from dpcohort.selection._distributed import LARGEST_WEIGHT, distributed_weights
from dpcohort.selection._instance import Costs

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from distributed_solver import conic_weights, instance


def _loudness(w, p, a, b):
    """What the noise must protect: the largest (w / p) sqrt(b + a p)."""
    here = w > 0
    return float((w[here] / p[here] * np.sqrt(b[here] + a[here] * p[here])).max())


@pytest.mark.parametrize("seed", range(12))
def test_solutions_are_optimal_by_their_own_certificate_and_by_a_conic_solver(seed):
    one = instance(seed)
    found = solve_distributed(
        one.u, one.a, cohort_size=one.members, honest=one.honest, **one.options
    )
    assert abs(found.probabilities.sum() - 1.0) < 1e-12
    assert 0.0 <= found.gap <= 1e-9 * found.objective
    assert found.objective == pytest.approx(
        Pool(one.members, one.honest).objective(found.probabilities, one.costs), rel=1e-12
    )
    theirs = Pool(one.members, one.honest).objective(conic_weights(one), one.costs)
    assert found.lower_bound <= theirs * (1 + 1e-8)  # theirs may miss a floor by rounding
    assert found.objective == pytest.approx(theirs, rel=2e-6)


def test_a_hundred_thousand_clients_in_seconds_with_a_proof():
    size = 100_000
    rng = np.random.default_rng(1)
    u = rng.uniform(0.5, 1.5, size)
    u /= u.sum()
    a = size * 10.0 ** rng.uniform(-2.0, 4.0, size)
    found = solve_distributed(u, a, cohort_size=size // 2, honest=size // 4, linear_costs=1e-3 * a)
    assert found.gap <= 1e-8 * found.objective


def test_while_nobody_is_in_every_cohort_it_is_problem_1_with_costs_over_h():
    rng = np.random.default_rng(2)
    u, a = rng.dirichlet(np.full(50, 5.0)), 10.0 ** rng.uniform(0, 2, 50)
    distributed = solve_distributed(u, a, cohort_size=5, honest=4)
    assert distributed.probabilities.tolist() == solve_selection(u, a / 4).probabilities.tolist()


def test_the_best_draws_for_given_weights():
    """p ~ (c w)^2 below 1/K needs the least noise of all p: max(||cw||^2, K ||cw||_inf^2)."""
    rng = np.random.default_rng(4)
    for members in (2, 5, 12):
        w, a, b = rng.dirichlet(np.ones(12)), 10.0 ** rng.uniform(0, 1, 12), np.zeros(12)
        least = max(float((a * w * w).sum()), members * float((a * w * w).max()))
        assert Pool(members, 2).noise(w, a, b) == pytest.approx(least / 2, rel=1e-12)
        p = Pool(members, 2).probabilities(w, a, b)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert p.max() <= 1 / members * (1 + 1e-12)
        # Room for clients that would speak louder than LARGEST_WEIGHT costs no more than this.
        most = LARGEST_WEIGHT / (LARGEST_WEIGHT - 1)
        assert least * (1 - 1e-9) <= _loudness(w, p, a, b) ** 2 <= least * most * (1 + 1e-9)
        for _ in range(200):
            other = np.minimum(rng.dirichlet(np.ones(12)), 1 / members)
            assert _loudness(w, np.maximum(other, 1e-12), a, b) ** 2 >= least * (1 - 1e-9)


def test_colluders_and_drop_outs_cost_k_over_h():
    w, a, b = np.full(4, 0.25), np.array([1.0, 2.0, 3.0, 4.0]), np.full(4, 0.1)
    noise = [Pool(4, honest).noise(w, a, b) for honest in (2, 3, 4)]
    assert [noise[0] / x for x in noise] == pytest.approx([1.0, 1.5, 2.0])


def test_a_bias_cap_is_kept_with_the_least_noise():
    rng = np.random.default_rng(7)
    u, a = rng.dirichlet(np.full(12, 3.0)), 10.0 ** rng.uniform(0, 3, 12)
    found = Pool(6, 6).solved_within(0.3, Costs(u, a))
    assert np.abs(found.probabilities - u).sum() == pytest.approx(0.3, abs=1e-9)
    again = solve_distributed(u, found.eta * a, cohort_size=6, honest=6)
    assert found.objective == pytest.approx(again.objective, rel=1e-6)


def test_a_bias_cap_below_what_floors_need_is_refused_and_public_clients_need_none():
    u, a = np.array([0.7, 0.3]), np.array([1.0, 1.0])
    with pytest.raises(InputError, match="bias"):
        Pool(2, 2).solved_within(0.1, Costs(u, a, floor=np.array([0.0, 0.5])))
    for cap in (None, u * (1 - 1e-13)):
        found = Pool(2, 2).solved_within(0.1, Costs(u, 0 * a, cap=cap))
        assert np.allclose(found.probabilities, u)
        assert found.eta == math.inf


def test_a_bias_cap_that_does_not_bind_gives_the_least_noise_of_all():
    """All in every cohort: w ~ 1 / c. Public clients take what floors leave to take."""
    half, a = np.full(2, 0.5), np.array([1.0, 4.0])
    found = Pool(2, 2).solved_within(1.5, Costs(half, a))
    assert found.probabilities == pytest.approx([2 / 3, 1 / 3])
    assert found.eta == math.inf
    rng = np.random.default_rng(10)
    u, a = rng.dirichlet(np.full(9, 3.0)), 10.0 ** rng.uniform(0, 3, 9)
    for linear in (np.zeros(9), 0.1 * a):
        pool = Pool(4, 3)
        least = pool.solved_within(1.5, Costs(u, a, linear))
        bias = np.abs(least.probabilities - u).sum()
        bound = pool.solved_within(0.9 * bias, Costs(u, a, linear))
        assert math.isfinite(bound.eta)
        noise = [pool.noise(w, a, linear) for w in (least.probabilities, u)]
        assert noise[0] < pool.noise(bound.probabilities, a, linear) < noise[1]
    a[:2] = 0.0
    taken = Pool(4, 3).solved_within(2.0, Costs(u, a, floor=0.1 * u)).probabilities
    assert taken[2:] == pytest.approx(0.1 * u[2:])
    assert taken[0] / taken[1] == pytest.approx(u[0] / u[1])
    some = Pool(4, 3).solved_within(0.1, Costs(u, a, floor=0.1 * u)).probabilities
    assert np.abs(some - u).sum() == pytest.approx(0.1, abs=1e-9)


def _solved_with_bounds(seed, room):
    """An instance whose bounds are a share of weights that have nothing to do with u; its gap."""
    one, rng = instance(seed), np.random.default_rng([seed, 1])
    wanted = rng.dirichlet(np.full(one.u.size, 10.0 ** rng.uniform(-0.5, 1)))
    floor, cap = (1 - room) * wanted, np.minimum((1 + room) * wanted, 1.0)
    bounds = ({"floor": floor}, {"cap": cap}, {"floor": floor, "cap": cap})[seed % 3]
    pool = {"cohort_size": one.members, "honest": one.honest}
    linear = one.b if one.b.any() else None
    found = solve_distributed(one.u, one.a, **pool, linear_costs=linear, **bounds)
    assert abs(found.probabilities.sum() - 1.0) < 1e-12, seed
    assert (found.probabilities >= bounds.get("floor", 0.0) - 1e-12).all(), seed
    assert (found.probabilities <= bounds.get("cap", 1.0) + 1e-12).all(), seed
    return found, wanted


def test_bounds_that_leave_one_choice_are_proved_to_leave_no_better():
    for seed in range(120):
        found, wanted = _solved_with_bounds(seed, 0.0)
        assert found.probabilities == pytest.approx(wanted, abs=1e-12), seed
        assert 0.0 <= found.gap <= 1e-9 * found.objective, seed


@pytest.mark.parametrize("room", [1e-6, 0.1, 0.5])
def test_bounds_far_from_the_sizes_are_kept_with_a_proof(room):
    for seed in range(20):
        found, _ = _solved_with_bounds(seed, room)
        assert 0.0 <= found.gap <= 1e-9 * found.objective, seed


@pytest.mark.parametrize("seed", [15, 140, 486, 978, 1001, 1142, 1382, 1436, 2809])
def test_caps_that_bind_where_all_draws_do_and_a_client_is_in_every_cohort(seed):
    """The noise has two reasons at once there, and the bound needs both."""
    rng = np.random.default_rng(777_000 + seed)
    size = int(rng.integers(3, 15))
    members = int(rng.integers(2, size + 1))
    honest = int(rng.integers(2, members + 1))
    u, a = rng.dirichlet(np.ones(size)), 10.0 ** rng.uniform(-3, 3, size)
    cap = min(1.0, 1 / size + 0.2 * rng.random())
    found = solve_distributed(u, a, cohort_size=members, honest=honest, cap=cap)
    assert 0.0 <= found.gap <= 1e-9 * found.objective


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("scale", "accuracy"), [(1.0, 1e-9), (1e12, 1e-5), (1e-12, 1e-9)])
def test_costs_of_many_decades_and_of_any_unit_are_solved_without_a_warning(scale, accuracy):
    for seed in range(1, 60, 6):
        rng = np.random.default_rng([seed, 2])
        size = int(rng.integers(2, 41))
        members = int(rng.integers(2, size + 1))
        u = rng.dirichlet(np.full(size, 10.0 ** rng.uniform(-0.5, 1)))
        a, b = 10.0 ** rng.uniform(-5, 5, (2, size))
        found = solve_distributed(
            u, scale * a, cohort_size=members, honest=2, linear_costs=scale * b
        )
        assert 0.0 <= found.gap <= accuracy * found.objective, seed


def test_a_floor_under_an_infinite_cost_makes_everything_infinitely_bad():
    u, a = np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, np.inf])
    for linear in (None, np.ones(3)):
        found = solve_distributed(
            u, a, cohort_size=2, honest=2, linear_costs=linear, floor=[0.0, 0.0, 0.1]
        )
        assert (found.objective, found.lower_bound, found.gap) == (math.inf, math.inf, 0.0)
        assert found.probabilities[2] == pytest.approx(0.1)


def test_who_is_public_needs_no_noise():
    w, zeros = np.array([0.5, 0.3, 0.2]), np.zeros(3)
    assert Pool(2, 2).probabilities(w, zeros, zeros) == pytest.approx(w)
    factors, level = distributed_weights(w, 10 * w, np.array([5, 3, 2]), zeros)
    assert factors == pytest.approx(np.ones(3))
    assert level == 0.0
    # The one client with a cost has no data.
    found = solve_distributed(
        [0.5, 0.5, 0.0], [0.0, 0.0, 4.0], cohort_size=2, honest=2, linear_costs=[0.0, 0.0, 1.0]
    )
    assert found.probabilities.tolist() == [0.5, 0.5, 0.0]
    assert (found.objective, found.gap) == (0.0, 0.0)


def test_many_clients_of_whom_a_sample_tells_nothing_are_solved_all_the_same():
    """Every fourth client is the sample: it has no data, is public, or has caps too small."""
    size = 16_388
    rng = np.random.default_rng(11)
    sampled = np.arange(size) % 4 == 0
    a, cap = size * 10.0 ** rng.uniform(-1, 2, size), np.full(size, 1.0)
    for kind in ("no data", "public", "capped"):
        u = rng.uniform(0.5, 1.5, size) * (1.0 - sampled * (kind == "no data"))
        u /= u.sum()
        costs = np.where(sampled & (kind == "public"), 0.0, a)
        caps = np.where(sampled & (kind == "capped"), 0.5 * u, cap)
        options = {"linear_costs": 0.01 * costs, "cap": caps}
        found = solve_distributed(u, costs, cohort_size=size // 2, honest=size // 4, **options)
        assert found.gap <= 1e-8 * found.objective, kind


def test_a_problem_with_a_pool_asks_for_distributed_noise():
    rng = np.random.default_rng(3)
    u, a = rng.dirichlet(np.full(8, 3.0)), 10.0 ** rng.uniform(0, 3, 8)
    pool, facts = Pool(4, 3), {"unbiased": u, "epsilon": np.ones(8), "noise_costs": a}
    facts |= {"public": np.zeros(8, dtype=bool), "linear_costs": 0.1 * a, "total_steps": 10}
    problem = SelectionProblem(**facts, smoothness=1.0, pool=pool)
    costs = Costs(u, a, 0.1 * a)
    found, alone = problem.solved_within(0.3), pool.solved_within(0.3, costs)
    assert np.array_equal(found.probabilities, alone.probabilities)
    assert problem.noise(u) == pool.noise(u, a, 0.1 * a)
    own = SelectionProblem(**facts, smoothness=1.0)
    assert np.allclose(own.solved(own.threshold * 0.999).probabilities, u)
    assert not np.allclose(own.solved(own.threshold * 1.1).probabilities, u)
    # Whoever may not be drawn at any price makes the objective infinite.
    a[0] = np.inf
    assert pool.objective(u, Costs(u, a)) == np.inf


def test_factors_follow_the_draws_that_there_are():
    wanted = np.array([0.4, 0.3, 0.2, 0.1, 0.0])
    draws, expected = np.array([5, 3, 1, 0, 1]), np.array([4.6, 3.2, 1.4, 0.5, 0.3])
    needed = np.array([0.5, 1.0, 2.0, np.nan, 3.0])
    for options in ({}, {"unbiased": np.full(5, 0.2), "noise_weight": 1.0}):
        factors, level = distributed_weights(wanted, expected, draws, needed, **options)
        assert draws @ factors / draws.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.isfinite(factors).all()
        assert factors[3] == 0.0
        assert factors[4] > 0.0  # not wanted, but there
        assert (factors * np.nan_to_num(needed) <= level).all()
    kept, _ = distributed_weights(wanted, expected, draws, needed)
    assert kept[4] < 0.01
    # Drawn as often as expected or not, each has its weight but for a tenth; the missing one's
    # weight is everybody's.
    lost = (kept * draws / draws.sum())[:3] / wanted[:3]
    assert lost.max() / lost.min() < 1 / 0.89


@pytest.mark.parametrize("rule", ["privacy-aware", "unbiased", "inverse-noise"])
@pytest.mark.parametrize(("members", "colluding"), [(4, 0), (12, 0), (12, 0.5)])
def test_plans_have_the_noise_that_was_expected(rule, members, colluding):
    """What the problem says before any draw is what the plan adds, up to rounding of the draws."""
    rng = np.random.default_rng(9)
    public = (np.arange(12) == 11) & (rule == "unbiased")
    people = Population.from_arrays(
        sizes=rng.integers(300, 600, 12),
        epsilon=np.where(public, np.nan, rng.choice([0.3, 1.0, 3.0], 12)),
        delta=np.where(public, np.nan, 1e-5),
        public=public,
    )
    training = Training(rounds=60, cohort_size=members, sampling_rate=1.0, dimension=100)
    contract = Contract(trust="distributed", colluding=colluding)
    plan = make_plan(people, training, selection=rule, accountant=contract, seed=0)
    w = plan.selection.probabilities
    assert plan.noise.only_sums
    spoken = plan.noise.weights * plan.counts / training.total_draws
    assert spoken.sum() == pytest.approx(1.0, abs=1e-9)
    assert np.abs(spoken - w).sum() < 0.12
    expected = plan.problem.noise(w) * training.total_steps / training.dimension
    added = plan.noise.pool.share**2 / members
    assert added == pytest.approx(expected, rel=0.35)
    assert (plan.certified_epsilon[~people.public] <= people.epsilon[~people.public]).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cohort_size": 4}, "at most the 3 clients"),
        ({"honest": 3}, "honest = 3"),
        ({"honest": 1}, "honest = 1"),
        ({"floor": [0.5, 0.5, 0.5]}, "floor"),
        ({"cap": 0.2}, "cap"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    given = {"cohort_size": 2, "honest": 2, **changes}
    with pytest.raises(InputError, match=words):
        solve_distributed([0.2, 0.3, 0.5], [1.0, 2.0, 3.0], **given)


def test_rules_are_measured_against_the_distributed_optimum():
    people = Population.from_arrays(sizes=[100, 200, 300], epsilon=[0.2, 1, 4], delta=1e-5)
    training = Training(rounds=10, cohort_size=3, sampling_rate=1.0, dimension=50)
    plan = make_plan(
        people, training, selection="unbiased", accountant=Contract(trust="distributed"), seed=0
    )
    best = rule_from_settings("privacy-aware").select(plan.problem)
    noise, linear = plan.problem.costs(best.eta)
    costs = Costs(plan.problem.unbiased, noise, linear)
    assert plan.selection.lower_bound == pytest.approx(best.lower_bound)
    assert plan.selection.objective == pytest.approx(Pool(3, 3).objective(people.unbiased, costs))


def test_floors_above_the_sizes_lower_the_others_so_that_weights_sum_to_one():
    """A share of 0.5 must go to a client of 0.1; nobody is above its size by choice."""
    u, floor = np.array([0.1, 0.3, 0.3, 0.3]), np.array([0.5, 0.0, 0.0, 0.0])
    for a in ([1.0, 1.0, 9.0, 400.0], [1.0, 0.0, 0.0, 0.0], [400.0, 1.0, 1.0, 0.0]):
        found = solve_distributed(
            u, a, cohort_size=3, honest=2, linear_costs=0.1 * np.array(a), floor=floor
        )
        assert found.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
        assert found.probabilities[0] >= 0.5
        assert 0.0 <= found.gap <= 1e-9 * found.objective

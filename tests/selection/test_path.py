# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection import SelectionPath, solve_selection
from dpcohort.selection._instance import scaled_costs


def _path(one):
    return SelectionPath(
        one.u, one.a, linear_costs=one.b, floor=one.floor, cap=one.cap, clipping_gap=one.g0
    )


def _solved(one, eta):
    return solve_selection(
        one.u,
        scaled_costs(eta, one.a),
        linear_costs=None if one.b is None else scaled_costs(eta, one.b),
        floor=one.floor,
        cap=one.cap,
        clipping_gap=one.g0,
    )


@pytest.mark.parametrize("bounded", [False, True])
def test_path_is_the_solver_at_every_eta(bounded, instance):
    for seed in range(50):
        one = instance(np.random.default_rng(seed), bounded=bounded)
        path = _path(one)
        for eta in (0.0, 1e-9, 0.01, 1.0, 30.0, 1e5, 1e12):
            ours, solver = path.at(eta), _solved(one, eta)
            scale = 1 + solver.objective
            assert ours.eta == eta
            assert abs(ours.objective - solver.objective) <= 1e-13 * scale
            assert ours.gap <= 1e-10 * scale


@pytest.mark.parametrize("bounded", [False, True])
def test_threshold_is_where_somebody_begins_to_move(bounded, instance):
    tried = 0
    for seed in range(150):
        one = instance(np.random.default_rng(seed), bounded=bounded)
        path = _path(one)
        eta = path.threshold
        if 0.0 < eta < 1e200:
            tried += 1
            before, after = path.at(eta * (1 - 1e-12)), path.at(eta * (1 + 1e-6))
            assert np.array_equal(before.probabilities, one.u)
            assert not np.array_equal(after.probabilities, one.u)
        elif eta == 0.0:
            assert not np.array_equal(path.at(1e-3).probabilities, one.u)
        else:
            assert np.array_equal(path.at(1e6).probabilities, one.u)
    assert tried >= 30


@pytest.mark.parametrize("bounded", [False, True])
def test_bias_cap_is_met_and_belongs_to_its_eta(bounded, instance):
    tried = 0
    for seed in range(50):
        one = instance(np.random.default_rng(seed), bounded=bounded)
        path = _path(one)
        least = path.at(0.0).probabilities
        least = float(np.abs(least - one.u).sum())
        for share in (0.1, 0.5, 0.9, 0.999):
            gap = least + share * (path.maximum_gap - least)
            if path.maximum_gap - least < 1e-9:
                continue
            ours = path.at_gap(gap)
            assert abs(float(np.abs(ours.probabilities - one.u).sum()) - gap) < 1e-12
            if math.isfinite(ours.eta):
                tried += 1
                assert ours.gap <= 1e-10 * (1 + ours.objective)
                solver = _solved(one, ours.eta)
                assert abs(ours.objective - solver.objective) <= 1e-12 * (1 + solver.objective)
    assert tried >= 40


def test_the_ends_of_the_path():
    u, c = np.array([0.5, 0.5]), np.array([1.0, 4.0])
    path = SelectionPath(u, c)
    assert path.limit == pytest.approx([0.8, 0.2])
    assert path.maximum_gap == pytest.approx(0.6)
    beyond = path.at_gap(1.0)
    assert beyond.eta == beyond.objective == math.inf
    assert beyond.probabilities == pytest.approx([0.8, 0.2])
    at_zero = path.at_gap(0.0)
    assert at_zero.eta == pytest.approx(path.threshold)
    assert at_zero.probabilities == pytest.approx(u)
    public = SelectionPath([0.2, 0.2, 0.6], [0.0, 0.0, 3.0])
    assert public.limit == pytest.approx([0.5, 0.5, 0.0])
    assert public.at_gap(2.0).objective == pytest.approx(2 * 1.2)
    assert path.at(1e14).probabilities == pytest.approx(path.limit, rel=1e-5)
    linear = SelectionPath(u, c, linear_costs=[0.0, 2.0])
    # a p = nu and a p + b/2 = nu: p = nu, (nu - 1)/4 with sum 1.
    assert linear.limit == pytest.approx([1.0, 0.0])


def test_costs_beyond_safe_arithmetic_when_scaled():
    path = SelectionPath([0.5, 0.5], [1e-200, 1e200])
    assert path.at(1e100).gap <= 1e-13 * (1 + path.at(1e100).objective)
    assert path.at(1e-100).probabilities.sum() == pytest.approx(1.0)
    # Costs so small that no weight of them that is safe would bring so much bias.
    tiny = SelectionPath([0.5, 0.5], [1e-280, 4e-280]).at_gap(0.2)
    assert tiny.probabilities == pytest.approx([0.6, 0.4])
    assert tiny.eta == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: path.at(-1.0), "eta = -1.0"),
        (lambda path: path.at(math.inf), "eta = inf"),
        (lambda path: path.at("auto"), "eta = 'auto'"),
        (lambda path: path.at_gap(-0.1), "bias_cap = -0.1"),
        (lambda path: path.at_gap(0.1), "bias_cap = 0.1 .*floors, caps and infinite costs force"),
    ],
)
def test_bad_questions_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(SelectionPath([0.3, 0.3, 0.4], [1.0, 2.0, math.inf]))

# SPDX-License-Identifier: Apache-2.0
"""The choice of tilt, grid and window, where it can be checked in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting.composition import Sketch, log_gap
from dpcohort.accounting.gaussian import gaussian_delta
from dpcohort.accounting.pairs import LossPair

MU = 0.5
STEPS = 9
TOTAL = MU * math.sqrt(STEPS)


@pytest.fixture
def gaussian():
    return Sketch([(LossPair(kind="remove", shift=MU, rate=1.0), STEPS)], math.log(1e-6))


def test_gap_is_the_largest_of_the_tilted_hockey_stick():
    u = np.linspace(0, 20, 200_001)
    for order in (0.1, 1.0, 7.0):
        largest = np.max(np.exp(-order * u) * -np.expm1(-u))
        assert math.exp(log_gap(order)) == pytest.approx(largest, rel=1e-6)


def test_moments_of_a_gaussian(gaussian):
    orders = np.array([-0.5, 0.0, 1.0, 5.0])
    exact = TOTAL**2 / 2 * orders * (1 + orders)
    np.testing.assert_allclose(gaussian.log_moment(orders), exact, atol=1e-6)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-6])
def test_the_expected_answer_of_a_gaussian_is_right(gaussian, delta):
    expected = gaussian.at_delta(math.log(delta))
    assert gaussian_delta(epsilon=expected.epsilon, mu=TOTAL) == pytest.approx(delta, rel=0.25)
    back = gaussian.at_epsilon(expected.epsilon)
    assert back.log_delta == pytest.approx(math.log(delta), abs=0.25)
    assert back.tilt == pytest.approx(expected.tilt, rel=0.05)


def test_a_tighter_tolerance_gives_a_finer_grid_around_the_answer(gaussian):
    target = gaussian.at_delta(math.log(1e-6))
    coarse = gaussian.grid(target, tolerance=1e-3)
    fine = gaussian.grid(target, tolerance=1e-5)
    assert fine.step == pytest.approx(coarse.step / 10, rel=1e-6)
    for grid in (coarse, fine):
        assert grid.low < target.epsilon < grid.low + grid.length


def test_parts_add_up(gaussian):
    pair = LossPair(kind="remove", shift=MU, rate=1.0)
    split = Sketch([(pair, 4), (pair, 5)], math.log(1e-6))
    orders = np.array([0.3, 3.0])
    np.testing.assert_allclose(split.log_moment(orders), gaussian.log_moment(orders), rtol=1e-12)

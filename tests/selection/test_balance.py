# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.selection.balance import BalanceCurve, best_balance

FIELDS = (
    "start",
    "start_growth",
    "clipping_growth",
    "steady",
    "selection_decay",
    "noise_growth",
)


def random_curve(rng: np.random.Generator) -> BalanceCurve:
    values = 10.0 ** rng.uniform(-6, 6, size=6) * (rng.random(6) > 0.2)
    return BalanceCurve(**dict(zip(FIELDS, map(float, values), strict=True)))


@pytest.mark.parametrize("seed", range(10))
def test_the_best_balance_is_never_beaten_on_a_fine_grid(seed: int) -> None:
    curve = random_curve(np.random.default_rng(seed))
    best = best_balance(curve)
    grid = [curve.value(balance) for balance in np.geomspace(1e-14, 1e14, 4001).tolist()]
    assert best.lower_bound <= min(grid)
    assert best.value <= min(grid) * (1 + 1e-13)
    assert 0 <= best.value - best.lower_bound <= 1e-12 * best.value


@pytest.mark.parametrize("seed", range(8))
def test_the_curve_is_convex_in_the_logarithm(seed: int) -> None:
    curve = random_curve(np.random.default_rng(seed))
    logs = np.linspace(-20, 20, 401)
    values = np.array([curve.value(math.exp(s)) for s in logs])
    bends = values[2:] - 2 * values[1:-1] + values[:-2]
    assert (bends >= -1e-12 * values[1:-1]).all()


@pytest.mark.parametrize("seed", range(6))
def test_the_slope_is_the_derivative(seed: int) -> None:
    curve = random_curve(np.random.default_rng(seed))
    step = 1e-5
    central = (curve.value(math.exp(0.3 + step)) - curve.value(math.exp(0.3 - step))) / (2 * step)
    assert curve.slope(math.exp(0.3)) == pytest.approx(central, rel=1e-6, abs=1e-8)


def test_limits_are_taken_in_closed_form() -> None:
    rising = BalanceCurve(
        start=4, start_growth=1, clipping_growth=1, steady=9, selection_decay=0, noise_growth=1
    )
    assert (best_balance(rising).balance, best_balance(rising).value) == (0.0, 5.0)
    falling = BalanceCurve(
        start=4, start_growth=0, clipping_growth=0, steady=9, selection_decay=2, noise_growth=0
    )
    assert (best_balance(falling).balance, best_balance(falling).value) == (math.inf, 5.0)


def test_a_minimum_beyond_the_searched_range_keeps_an_honest_lower_bound() -> None:
    curve = BalanceCurve(
        start=1,
        start_growth=1e-200,
        clipping_growth=0,
        steady=1,
        selection_decay=1e100,
        noise_growth=0,
    )
    best = best_balance(curve)
    assert best.lower_bound == pytest.approx(2.0, rel=1e-12)
    assert best.lower_bound <= curve.value(1e150) <= best.value

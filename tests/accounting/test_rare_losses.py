# SPDX-License-Identifier: Apache-2.0
"""Tiny rates: never below the truth, and close to it at every size of loss."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting import _rare_losses as rare_losses
from dpcohort.accounting import gaussian_delta
from dpcohort.accounting._closed_forms import amplified_budget
from dpcohort.accounting._composition import GridLoss, LossPair, grid_delta, grid_epsilon
from dpcohort.accounting._rare_losses import level_of, rare_delta, rare_epsilon, rarely_exceeds


def one_step_delta(shift: float, rate: float, epsilon: float) -> float:
    inner, _ = amplified_budget(epsilon=epsilon, delta=0.5, sampling_rate=rate)
    return rate * float(gaussian_delta(epsilon=float(inner), mu=shift))


@pytest.mark.parametrize("kind", ["remove", "fixed"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_a_single_step_is_the_closed_form(kind: str, epsilon: float) -> None:
    truth = one_step_delta(3.0, 1e-5, epsilon)
    found = rare_delta([(LossPair(kind=kind, shift=3.0, rate=1e-5), 1)], epsilon)
    assert truth < found < 1.02 * truth


@pytest.mark.parametrize("kind", ["remove", "replace", "fixed", "add"])
def test_many_small_losses_are_as_close_as_on_one_grid(kind: str) -> None:
    # records are seen so often that the plain composition is accurate
    pair = LossPair(kind=kind, shift=0.4, rate=4e-4)
    truth = grid_delta([(pair, 100_000)], 0.3, tolerance=1e-6)
    found = rare_delta([(pair, 100_000)], 0.3, expected=truth)
    assert 0.999 * truth < found < 1.2 * truth


def test_epsilon_and_delta_are_inverse() -> None:
    steps = [(LossPair(kind="remove", shift=1 / 0.536, rate=1e-5), 100_000)]
    assert rare_epsilon(steps, rare_delta(steps, 0.1)) == pytest.approx(0.1, rel=2e-2)


def test_sums_out_of_reach_cost_nothing() -> None:
    added = LossPair(kind="add", shift=2.0, rate=1e-5)
    assert rare_delta([(added, 1000)], 0.011) == 0
    assert rarely_exceeds([(added, 1000)], epsilon=0.011, delta=1e-200)


def test_what_it_keeps_by_moments_it_keeps_by_the_distribution() -> None:
    pair = LossPair(kind="add", shift=1 / 0.536, rate=1e-5)
    assert rarely_exceeds([(pair, 100_000)], epsilon=0.1, delta=1e-6)
    assert rare_delta([(pair, 100_000)], 0.1, expected=1e-6) < 1e-6
    other = LossPair(kind="remove", shift=2.0, rate=1e-5)
    assert not rarely_exceeds([(other, 99)], epsilon=0.1, delta=1e-9)


def test_too_many_points_fall_back_on_one_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = LossPair(kind="remove", shift=2.0, rate=1e-5)
    monkeypatch.setattr(rare_losses, "_MOST_SUMS", 2)
    assert rare_delta([(pair, 50)], 0.5) == grid_delta([(pair, 50)], 0.5)
    assert rare_epsilon([(pair, 50)], 1e-6) == grid_epsilon([(pair, 50)], 1e-6)


def test_the_answer_does_not_depend_on_how_finely_losses_are_sorted() -> None:
    for kind, shift in (("remove", 1 / 0.698), ("replace", 1 / 0.7), ("fixed", 2 / 1.36)):
        parts = [(LossPair(kind=kind, shift=shift, rate=1e-5), 100_000)]
        coarse, fine = (rare_delta(parts, 0.1, coarseness=c, expected=1e-9) for c in (1.0, 0.1))
        assert np.isclose(coarse, fine, rtol=0.06)


BOUNDS = (1e-3, 0.05, math.inf)
STEPS = (1e-5, 1e-3, 2e-2)


def levels(pair: LossPair) -> list[GridLoss]:
    inside, result = None, []
    for step, bound in zip(STEPS, BOUNDS, strict=True):
        grid, inside = level_of(pair, step, inside=inside, bound=bound, lowest=-9.0, top=9.0)
        result.append(grid)
    return result


def moments(grid: GridLoss, step: float) -> tuple[float, float]:
    """Mass under both data sets, that of the other in units of its smaller losses."""
    loss = step * (grid.first + np.arange(grid.mass.size))
    return float(grid.mass.sum()), float(grid.mass @ np.exp(-loss))


@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed"])
def test_every_level_is_a_distribution_under_both_data_sets(kind: str) -> None:
    pair = LossPair(kind=kind, shift=2.0, rate=1e-4)
    q_share = 1.0
    for grid, step in zip(levels(pair), STEPS, strict=True):
        p, q = moments(grid, step)
        assert p + grid.infinity == pytest.approx(1.0, abs=1e-12)
        q_share *= q
    # L - ν of the upper levels and L of the lowest: the ν cancel in all levels together
    assert q_share == pytest.approx(1.0, abs=1e-6)


def test_losses_above_the_top_are_infinite_and_those_below_the_lowest_are_raised() -> None:
    pair = LossPair(kind="replace", shift=3.0, rate=1e-3)
    wide, _ = level_of(pair, 0.01, inside=None, bound=math.inf, lowest=-3.0, top=3.0)
    narrow, _ = level_of(pair, 0.01, inside=None, bound=math.inf, lowest=-1.0, top=1.0)
    assert narrow.infinity > wide.infinity > 0
    assert narrow.first >= -101
    assert narrow.mass.sum() + narrow.infinity == pytest.approx(1.0, abs=1e-12)

# SPDX-License-Identifier: Apache-2.0
"""Losses by size: every level is a distribution, and the levels together are the step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting.pairs import GridLoss, LossPair
from dpcohort.accounting.rare_losses import level_of

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


@pytest.mark.parametrize("kind", ["remove", "replace", "fixed"])
def test_the_top_level_has_the_large_losses(kind: str) -> None:
    pair = LossPair(kind=kind, shift=2.0, rate=1e-4)
    small, middle, large = levels(pair)
    assert STEPS[0] * (small.first + small.mass.size - 1) < 1.02e-3
    assert STEPS[1] * (middle.first + middle.mass.size - 1) < 0.052
    assert STEPS[2] * (large.first + large.mass.size - 1) > 8.0
    assert large.mass[-large.first] > 0.99
    # nothing between 0 and the bound
    assert not large.mass[-large.first + 1 : -large.first + 2].any()


def test_losses_above_the_top_are_infinite_and_those_below_the_lowest_are_raised() -> None:
    pair = LossPair(kind="replace", shift=3.0, rate=1e-3)
    wide, _ = level_of(pair, 0.01, inside=None, bound=math.inf, lowest=-3.0, top=3.0)
    narrow, _ = level_of(pair, 0.01, inside=None, bound=math.inf, lowest=-1.0, top=1.0)
    assert narrow.infinity > wide.infinity > 0
    assert narrow.first >= -101
    assert narrow.mass.sum() + narrow.infinity == pytest.approx(1.0, abs=1e-12)

# SPDX-License-Identifier: Apache-2.0
"""Budget itself is tested with the clients that hold it; here, the budgets of the paper."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.clients.budgets import PAPER_BUDGETS, GaussianMixture, Uniform


def test_the_papers_budgets_have_names():
    assert set(PAPER_BUDGETS) >= {"uniform-0-1", "mixture-0.5-10", "mixture-2-8"}
    assert PAPER_BUDGETS["uniform-0-1"] == Uniform(0, 1)


@pytest.mark.parametrize(
    ("name", "low", "high"), [("mixture-0.5-10", 0.5, 10), ("mixture-2-8", 2, 8)]
)
def test_both_readings_of_0_04_are_there(name: str, low: float, high: float):
    variance, deviation = PAPER_BUDGETS[name], PAPER_BUDGETS[f"{name}-std"]
    assert isinstance(variance, GaussianMixture)
    assert isinstance(deviation, GaussianMixture)
    assert variance.components == ((0.3, low, 0.2), (0.7, high, 1))
    assert variance.components[0][2] ** 2 == pytest.approx(0.04)
    assert deviation.components == ((0.3, low, 0.04), (0.7, high, 1))


@pytest.mark.parametrize("name", PAPER_BUDGETS)
def test_all_draws_are_usable_budgets(name: str):
    draws = PAPER_BUDGETS[name].draw(10_000, np.random.default_rng(1))
    assert ((draws > 0) & (draws <= 700)).all()

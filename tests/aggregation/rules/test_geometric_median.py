# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from scipy.optimize import minimize

from dpcohort.aggregation import GeometricMedian
from dpcohort.errors import InputError


def test_against_a_general_minimiser(make_cohort):
    updates = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).double()
    combined = GeometricMedian(steps=500, tolerance=1e-12).combine(updates, make_cohort([1.0] * 7))

    def total(point):
        return float((updates - torch.as_tensor(point)).norm(dim=1).sum())

    best = minimize(total, updates.mean(0).numpy(), method="Nelder-Mead", options={"xatol": 1e-9})
    assert total(combined.numpy()) <= best.fun * (1 + 1e-9)
    assert total(combined.numpy()) < total(updates.mean(0).numpy()) * 0.999


def test_fewer_than_half_cannot_carry_it_away(make_cohort):
    updates = torch.randn(9, 20, generator=torch.Generator().manual_seed(1)).double()
    updates[5:] = 1e6
    honest = updates[:5]
    combined = GeometricMedian(steps=200).combine(updates, make_cohort([1.0] * 9))
    radius = float((honest - honest.mean(0)).norm(dim=1).max())
    # Two (K - b) / (K - 2 b) radii, with b = 4 of K = 9.
    assert float((combined - honest.mean(0)).norm()) < 10 * radius


def test_a_noisy_draw_weighs_less_though_nobody_told(make_cohort):
    updates = torch.randn(6, 2000, generator=torch.Generator().manual_seed(2))
    updates[0] *= 30.0
    combined = GeometricMedian().combine(updates, make_cohort([1.0] * 6))
    assert float(combined.norm()) < 0.2 * float(updates.mean(0).norm())


def test_equal_updates_are_their_own_median(make_cohort):
    updates = torch.full((4, 3), 2.5)
    assert GeometricMedian().combine(updates, make_cohort([1.0] * 4)).tolist() == [2.5] * 3


@pytest.mark.parametrize("bad", [{"steps": 0}, {"smoothing": 0.0}, {"tolerance": -1.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        GeometricMedian(**bad)

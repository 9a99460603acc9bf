# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import trim_mean

from dpcohort.aggregation import ClippedMean, GeometricMedian, TrimmedMean
from dpcohort.errors import InputError


def test_long_updates_are_shortened_and_short_ones_left(make_cohort):
    updates = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    combined = ClippedMean(bound=1.0).combine(updates, make_cohort([1.0] * 3))
    assert combined.tolist() == pytest.approx([0.9 / 3, 1.2 / 3])


@pytest.mark.parametrize("lie", [1e6, 3e38, -3e38])
def test_one_liar_moves_the_result_by_no_more_than_its_share(make_cohort, lie):
    updates = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    rule, cohort = ClippedMean(bound=4.0), make_cohort([1.0] * 5)
    honest = rule.combine(updates, cohort)
    updates[2] = lie
    moved = float((rule.combine(updates, cohort) - honest).norm())
    assert 0.1 < moved <= 2 * 4.0 / 5 * (1 + 1e-5)


def test_a_wide_bound_is_the_mean(make_cohort):
    updates = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    combined = ClippedMean(bound=1e6).combine(updates, make_cohort([1.0] * 5))
    assert torch.equal(combined, updates.mean(0))


def test_the_tiniest_updates_are_left(make_cohort):
    updates = torch.full((2, 3), 1e-44)
    combined = ClippedMean(bound=1.0).combine(updates, make_cohort([1.0] * 2))
    assert torch.equal(combined, updates.mean(0))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), "wide"])
def test_a_bound_that_is_none_is_refused(bound):
    with pytest.raises(InputError, match="bound"):
        ClippedMean(bound=bound)


@pytest.mark.parametrize("trim", [0.0, 0.1, 0.2, 0.33, 0.49])
def test_against_scipy(make_cohort, trim):
    updates = torch.randn(10, 7, generator=torch.Generator().manual_seed(0)).double()
    combined = TrimmedMean(trim=trim).combine(updates, make_cohort([1.0] * 10))
    expected = trim_mean(updates.numpy(), trim, axis=0)
    np.testing.assert_allclose(combined.numpy(), expected, rtol=1e-13)


def test_liars_within_the_trim_stay_between_the_honest(make_cohort):
    updates = torch.randn(10, 50, generator=torch.Generator().manual_seed(1))
    updates[3], updates[7] = 1e30, -1e30
    honest = updates[[0, 1, 2, 4, 5, 6, 8, 9]]
    combined = TrimmedMean(trim=0.2).combine(updates, make_cohort([1.0] * 10))
    assert bool((combined <= honest.amax(0)).all())
    assert bool((combined >= honest.amin(0)).all())


def test_shares_are_counted_as_written(make_cohort):
    # 0.29 * 100 is 28.999999999999996.
    updates = torch.zeros(100, 1)
    updates[:29] = 1e6
    assert float(TrimmedMean(trim=0.29).combine(updates, make_cohort([1.0] * 100))) == 0.0


def test_something_is_always_left(make_cohort):
    updates = torch.arange(10.0)[:, None]
    almost = float(np.nextafter(0.5, 0.0))
    assert float(TrimmedMean(trim=almost).combine(updates, make_cohort([1.0] * 10))) == 4.5


@pytest.mark.parametrize("trim", [-0.1, 0.5, float("nan")])
def test_a_trim_out_of_range_is_refused(trim):
    with pytest.raises(InputError, match="trim"):
        TrimmedMean(trim=trim)


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

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from dpcohort.aggregation import TrimmedMean
from dpcohort.errors import InputError


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

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpcohort.errors import InputError
from dpcohort.runs import mean_interval


def test_is_the_t_interval():
    values = [0.3, 0.5, 0.9, 0.2]
    low, high = stats.t.interval(0.9, 3, loc=np.mean(values), scale=stats.sem(values))
    found = mean_interval(values, confidence=0.9)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert found.half_width == pytest.approx((high - low) / 2)


def test_one_value_concludes_nothing():
    found = mean_interval([0.7])
    assert found.mean == 0.7
    assert math.isinf(found.high)
    assert not found.excludes(-100.0)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_values_must_be_numbers(values):
    with pytest.raises(InputError, match="finite"):
        mean_interval(values)

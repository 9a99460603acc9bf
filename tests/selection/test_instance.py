# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection.instance import (
    bounded_costs,
    checked_bound,
    checked_costs,
    checked_unbiased,
    scaled_costs,
)

U = np.array([0.25, 0.75])


def test_good_arrays_pass_without_a_copy():
    assert checked_unbiased(U) is U
    costs = np.array([0.0, math.inf])
    assert checked_costs("noise_costs", costs, 2) is costs


def test_infinite_costs_become_caps_at_the_floor():
    a, b = np.array([1.0, math.inf]), np.array([1.0, 1.0])
    costs, unavoidable = bounded_costs(U, a, b, None, None, 0.0)
    assert costs.cap.tolist() == [1.0, 0.0]
    assert np.isfinite(costs.noise).all()
    assert not unavoidable
    costs, unavoidable = bounded_costs(U, a, b, np.array([0.0, 0.5]), None, 0.0)
    assert costs.cap.tolist() == [1.0, 0.5]
    assert unavoidable


def test_bounds_may_be_one_number_for_all():
    assert checked_bound("floor", 0.1, U).tolist() == [0.1, 0.1]
    assert checked_bound("cap", [0.5, math.inf], U).tolist() == [0.5, math.inf]
    assert checked_bound("cap", None, U) is None
    with pytest.raises(InputError, match="shape of cap"):
        checked_bound("cap", [0.5, 0.5, 0.5], U)


def test_infinite_costs_stay_infinite_when_scaled():
    costs = np.array([2.0, math.inf, 1e300])
    assert scaled_costs(0.0, costs).tolist() == [0.0, math.inf, 0.0]
    assert scaled_costs(1e10, costs).tolist() == [2e10, math.inf, math.inf]

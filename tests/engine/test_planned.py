# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpcohort.engine import draw_numbers
from dpcohort.engine._experiment import cohort_of
from dpcohort.errors import InputError


def test_draws_of_one_client_are_numbered() -> None:
    assert draw_numbers(np.array([7, 7, 1, 7, 1])).tolist() == [0, 1, 0, 2, 1]


def test_a_cohort_has_each_draws_noise(make_plan: Any) -> None:
    plan = make_plan([8, 8], [[1, 0, 1]], clip=0.5, batch_size=4, noise=[0.0, 2.0])
    cohort = cohort_of(plan, 0)
    assert len(cohort) == 3
    assert cohort.draws.tolist() == [0, 0, 1]
    assert cohort.noise_stds.tolist() == [0.25, 0.0, 0.25]


def test_a_cohort_that_is_not_chosen_cannot_be_trained(make_plan: Any) -> None:
    plan = make_plan([8, 8], [[1, 0, 1]])
    with pytest.raises(InputError, match="round 1 is not chosen yet"):
        cohort_of(plan, 1)
    assert cohort_of(plan, 1, np.array([1, 1])).draws.tolist() == [0, 1]


@pytest.mark.parametrize("z", [float("nan"), float("inf"), -1.0])
def test_a_drawn_client_needs_a_noise_multiplier(make_plan: Any, z: float) -> None:
    plan = make_plan([8, 8], [[0], [1]], noise=[1.0, z])
    assert len(cohort_of(plan, 0)) == 1
    with pytest.raises(InputError, match=r"noise_multipliers\[1\]"):
        cohort_of(plan, 1)

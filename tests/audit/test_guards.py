# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpcohort.audit import Claim, GuardUnderTest
from dpcohort.audit._under_test import HOSTILE

ALL: dict[str, Any] = {"batch_size": 4, "seed": 0, "cohorts": np.array([[0]])}
SMALL = Claim(sampler="fixed", noise_multiplier=2.0**-20)
GRADIENTS = np.eye(4) * [[0.5], [1.0], [2.0], [0.0]]


def test_gradients_are_the_inputs() -> None:
    update = GuardUnderTest()(GRADIENTS, claim=SMALL, **ALL)
    np.testing.assert_allclose(update[0, 0] * 4, [0.5, 1.0, 1.0, 0.0], atol=3e-5)


def test_they_stay_the_inputs_as_the_weights_move() -> None:
    update = GuardUnderTest()(GRADIENTS, claim=SMALL, local_steps=3, **ALL)
    np.testing.assert_allclose(update[0, 0] * 4 / 3, [0.5, 1.0, 1.0, 0.0], atol=3e-5)


def test_nothing_repeats() -> None:
    one, two = (GuardUnderTest()(GRADIENTS, claim=Claim(sampler="fixed"), **ALL) for _ in range(2))
    assert not np.any(one == two)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_models_have_hostile_arithmetic_only(hostile: str) -> None:
    """What a record contributes is what it would contribute elsewhere, or nothing."""
    update = GuardUnderTest(hostile=hostile)(GRADIENTS, claim=SMALL, **ALL)[0, 0] * 4
    known = np.isclose(update, [0.5, 1.0, 1.0, 0.0], atol=3e-5) | np.isclose(update, 0, atol=3e-5)
    assert known.all(), update

# SPDX-License-Identifier: Apache-2.0
"""Every scheme, with a client that has promised nothing among the others."""

from __future__ import annotations

import math

import pytest

from dpcohort_lab.schemes.named import SCHEMES, make_scheme
from dpcohort_lab.schemes.simulation import Simulation

from .conftest import small_config


@pytest.fixture(scope="module")
def mixed() -> Simulation:
    changes = [
        "population.total_size=1154", "population.count=3", "data.public_share=0.2",
        "training.rounds=2", "training.cohort_size=4",
    ]  # fmt: skip
    return Simulation.of(small_config(*changes))


@pytest.mark.parametrize("name", SCHEMES)
def test_public_data_has_no_promise_and_the_others_keep_theirs(mixed, name):
    outcome = make_scheme(name).run(mixed)
    *private, public = outcome.receipts
    assert public.public
    assert public.certified_epsilon is None
    assert all(not receipt.public and receipt.holds for receipt in private)
    assert math.isfinite(outcome.loss)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import fields

import numpy as np

from dpcohort.aggregation.cohort import Cohort


def test_a_cohort_holds_only_public_things() -> None:
    public = {"round", "clients", "draws", "noise_multipliers", "batch_sizes", "noise_stds"}
    assert {field.name for field in fields(Cohort)} == public


def test_its_length_is_the_number_of_draws() -> None:
    two = np.array([3, 3])
    cohort = Cohort(
        round=0, clients=two, draws=np.array([0, 1]), noise_multipliers=np.ones(2),
        batch_sizes=two, noise_stds=np.ones(2),
    )  # fmt: skip
    assert len(cohort) == 2

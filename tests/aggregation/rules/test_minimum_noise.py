# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dpcohort.aggregation import MinimumNoise


@pytest.mark.parametrize("seed", range(20))
def test_no_other_subset_has_a_mean_of_less_noise(make_cohort, seed):
    rng = np.random.default_rng(seed)
    stds = rng.choice([0.3, 0.5, 1.0, 2.0, 5.0], size=6) * rng.choice([1.0, 1.1], size=6)
    kept = MinimumNoise().kept(make_cohort(stds))
    noises = [
        (stds[list(subset)] ** 2).sum() / len(subset) ** 2
        for size in range(1, 7)
        for subset in itertools.combinations(range(6), size)
    ]
    assert (stds[kept] ** 2).sum() / kept.sum() ** 2 == pytest.approx(min(noises))


@pytest.mark.parametrize(
    ("stds", "kept"),
    [
        ([1.0, 1.0, 1.0], [True, True, True]),
        ([0.0, 2.0, 0.0], [True, False, True]),
        ([1.0, 9.0, 9.0], [True, False, False]),
        ([1e-200, 1e200], [True, False]),
        ([9.0, 1.0, 1.5], [False, True, True]),
    ],
)
def test_hand_computed_cases(make_cohort, stds, kept):
    cohort = make_cohort(stds)
    assert MinimumNoise().kept(cohort).tolist() == kept
    combined = MinimumNoise().combine(torch.eye(len(stds)), cohort)
    assert combined.tolist() == pytest.approx([keep / sum(kept) for keep in kept])

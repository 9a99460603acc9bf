# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest

from dpcohort.errors import InputError
from dpcohort.training import Training


@pytest.mark.parametrize(
    "field", ["rounds", "cohort_size", "local_steps", "dimension", "batch_size"]
)
def test_counts_must_be_whole_and_positive(field: str):
    for value in (0, -1, 1.5, math.nan, math.inf, "3", True):
        with pytest.raises(InputError, match=f"{field} = .* a whole number at least 1"):
            Training(**{field: value})


@pytest.mark.parametrize("field", ["clip", "smoothness"])
def test_clip_and_smoothness_must_be_positive(field: str):
    for value in (0, -1.0, math.nan, math.inf, "1", True):
        with pytest.raises(InputError, match=f"{field} = .* above 0"):
            Training(**{field: value})


@pytest.mark.parametrize("value", [0, -0.1, 1.1, math.nan])
def test_a_sampling_rate_is_a_share(value: float):
    with pytest.raises(InputError, match=r"sampling_rate = .* above 0 and at most 1"):
        Training(sampling_rate=value)


def test_batch_and_rate_exclude_each_other():
    with pytest.raises(InputError, match=r"batch_size and sampling_rate are both given; keep one"):
        Training(batch_size=10, sampling_rate=0.1)


def test_an_unknown_policy_is_named_with_the_nearest_one():
    with pytest.raises(InputError, match=r"oversized_batch = 'hole'.*Did you mean 'whole'"):
        Training(oversized_batch="hole")

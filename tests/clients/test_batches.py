# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.clients.batches import expected_batches
from dpcohort.errors import InputError
from dpcohort.training import Training

IDS = ("large", "small", "tiny")
SIZES = np.array([1000, 96, 3])


def batches(training: Training, own: tuple[int, int, int] = (0, 0, 0)) -> list[int]:
    made = expected_batches(training, ids=IDS, sizes=SIZES, own_batches=np.array(own))
    assert made.dtype == np.int64
    return made.tolist()


def test_without_a_word_a_client_uses_a_tenth_and_at_least_one_record():
    assert batches(Training()) == [100, 10, 1]


def test_a_rate_is_rounded_to_records():
    assert batches(Training(sampling_rate=0.5)) == [500, 48, 2]
    assert batches(Training(sampling_rate=1.0)) == [1000, 96, 3]
    assert batches(Training(sampling_rate=1e-9)) == [1, 1, 1]


def test_a_batch_of_its_own_comes_first():
    assert batches(Training(batch_size=3), own=(0, 64, 0)) == [3, 64, 3]
    assert batches(Training(sampling_rate=0.5), own=(0, 64, 0)) == [500, 64, 2]


def test_an_oversized_batch_names_client_size_batch_and_ways_out():
    with pytest.raises(InputError) as caught:
        batches(Training(batch_size=128))
    message = str(caught.value)
    for part in (
        "batch_size = 128",
        "'small' has 96 records",
        "(1 other client too)",
        "Lower the batch size",
        "batch_size column",
        'oversized_batch = "whole"',
    ):
        assert part in message


def test_a_batch_of_its_own_may_be_oversized_too():
    with pytest.raises(InputError, match=r"batch_size = 4 .*'tiny' has 3 records\. Lower"):
        batches(Training(batch_size=1), own=(0, 0, 4))


def test_whole_lets_small_clients_use_all_they_have():
    training = Training(batch_size=10**30, oversized_batch="whole")
    assert batches(training, own=(7, 0, 0)) == [7, 96, 3]

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpcohort.engine import ClientRecords
from dpcohort.errors import InputError


def build(inputs: Any = None, **options: Any) -> ClientRecords:
    given = np.arange(12.0).reshape(4, 3) if inputs is None else inputs
    settings = {"indices": np.array([3, 1, 0]), "offsets": np.array([0, 1, 3])} | options
    return ClientRecords(given, np.arange(4), **settings)


def test_rows_of_a_client() -> None:
    records = build()
    assert len(records) == 2
    assert records.sizes.tolist() == [1, 2]
    inputs, targets = records.gather(records.rows(1, np.array([1, 0])))
    assert inputs.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert targets.tolist() == [0, 1]


def test_rows_that_cannot_be_used_are_left_out() -> None:
    records = build(unusable=np.array([True, False, False, False]))
    assert records.rows(1, np.array([1, 0])).tolist() == [1]
    assert records.sizes.tolist() == [1, 2]


def test_images_come_back_as_they_were_and_channels_last() -> None:
    images = torch.randn(4, 2, 5, 3)
    inputs, _ = build(images).gather(np.array([2, 0]))
    assert torch.equal(inputs, images[[2, 0]])
    assert inputs.is_contiguous(memory_format=torch.channels_last)


def test_bytes_become_floats_and_tokens_stay() -> None:
    pixels = build(
        np.full((4, 2), 255, dtype=np.uint8), dtype=torch.float32, transform=lambda x: x / 255
    )
    assert pixels.gather(np.array([0]))[0].tolist() == [[1.0, 1.0]]
    tokens = build(np.arange(8).reshape(4, 2), dtype=torch.float32)
    assert tokens.gather(np.array([1]))[0].dtype == torch.int64


@pytest.mark.parametrize(
    "options",
    [
        {"offsets": np.array([0, 2, 1, 3])},
        {"offsets": np.array([0, 2])},
        {"offsets": np.array([1, 3])},
        {"indices": np.array([0, 1, 4])},
        {"indices": np.array([0, 1, -1])},
        {"inputs": np.zeros((5, 3))},
    ],
)
def test_data_that_does_not_fit_together_is_refused(options: Any) -> None:
    with pytest.raises(InputError):
        build(**options)


def test_a_plan_for_other_sizes_is_refused(make_plan: Any) -> None:
    build().check_against(make_plan([1, 2], [[0]]))
    with pytest.raises(InputError, match="client 1 has 2 records but was planned with 3"):
        build().check_against(make_plan([1, 3], [[0]]))
    with pytest.raises(InputError, match="3 clients but the data has 2"):
        build().check_against(make_plan([1, 2, 3], [[0]]))

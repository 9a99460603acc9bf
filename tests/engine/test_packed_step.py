# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dpcohort.engine.device_draws import pack


def packed_of(rows: list[list[int]], names: list[list[int]], reals: list[float], **how: Any) -> Any:
    return pack(
        [np.array(own, dtype=np.int64) for own in rows],
        [np.array(name, dtype=np.uint64) for name in names],
        scale=reals,
        spread=[2 * real for real in reals],
        clip=[3 * real for real in reals],
        pinned=False,
        **how,
    )


def test_everything_comes_out_as_it_went_in() -> None:
    names = [[1, 2**64 - 1], [3, 4], [2**63, 6]]
    packed = packed_of([[4, 5, 9], [], [8]], names, [0.5, 1.5, -2.0], multiple=2)
    assert (packed.draws, packed.width, packed.is_full) == (3, 4, False)
    assert packed.rows.view(3, 4).tolist() == [[4, 5, 9, 0], [0] * 4, [8, 0, 0, 0]]
    assert packed.mask is not None
    assert packed.mask.sum(1).tolist() == [3, 0, 1]
    assert packed.noise_names.numpy().view(np.uint64).tolist() == names
    assert packed.scale.tolist() == [0.5, 1.5, -2.0]
    assert packed.spread.tolist() == [1.0, 3.0, -4.0]
    assert packed.clip.tolist() == [1.5, 4.5, -6.0]


def test_full_batches_have_no_mask() -> None:
    packed = packed_of([[1, 2]] * 2, [[0, 0]] * 2, [1.0, 1.0], multiple=2)
    assert packed.is_full
    assert packed.mask is None


def test_a_copy_holds_the_same() -> None:
    packed = packed_of([[1, 2]], [[5, 6]], [1.0], multiple=1)
    moved = packed.moved_to(torch.zeros_like(packed.words))
    assert torch.equal(moved.rows, packed.rows)
    assert torch.equal(moved.clip, packed.clip)
    assert moved.words is not packed.words

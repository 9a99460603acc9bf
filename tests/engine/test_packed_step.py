# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import torch

from dpcohort.engine.packed_step import SlotStep, pack


def slot_step(rows: list[int], first: int, second: int, real: float) -> SlotStep:
    name = np.array([first, second], dtype=np.uint64)
    return SlotStep(np.array(rows, dtype=np.int64), name, real, 2 * real, 3 * real)


def test_everything_comes_out_as_it_went_in() -> None:
    steps = [
        slot_step([4, 5, 9], 1, 2**64 - 1, 0.5),
        slot_step([], 3, 4, 1.5),
        slot_step([8], 2**63, 6, -2.0),
    ]
    packed = pack(steps, multiple=2, pinned=False)
    assert (packed.slots, packed.width, packed.is_full) == (3, 4, False)
    assert packed.rows.view(3, 4).tolist() == [[4, 5, 9, 0], [0] * 4, [8, 0, 0, 0]]
    assert packed.mask is not None
    assert packed.mask.sum(1).tolist() == [3, 0, 1]
    names = packed.noise_names.numpy().view(np.uint64)
    assert names.tolist() == [[1, 2**64 - 1], [3, 4], [2**63, 6]]
    assert packed.scale.tolist() == [0.5, 1.5, -2.0]
    assert packed.spread.tolist() == [1.0, 3.0, -4.0]
    assert packed.clip.tolist() == [1.5, 4.5, -6.0]


def test_full_batches_have_no_mask() -> None:
    packed = pack([slot_step([1, 2], 0, 0, 1.0)] * 2, multiple=2, pinned=False)
    assert packed.is_full
    assert packed.mask is None


def test_a_copy_holds_the_same() -> None:
    packed = pack([slot_step([1, 2], 5, 6, 1.0)], multiple=1, pinned=False)
    moved = packed.moved_to(torch.zeros_like(packed.words))
    assert torch.equal(moved.rows, packed.rows)
    assert torch.equal(moved.clip, packed.clip)
    assert moved.words is not packed.words

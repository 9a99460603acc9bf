# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from dpcohort.engine.clipping.scratch import Scratch


def test_a_name_keeps_its_memory_and_has_no_other_ones() -> None:
    scratch, like = Scratch(), torch.zeros(1)
    first = scratch.piece("a", (2, 3), like).fill_(1)
    other = scratch.piece("b", (6,), like).fill_(2)
    assert torch.equal(first, torch.ones(2, 3))
    again = scratch.piece("a", (4,), like)
    assert again.data_ptr() == first.data_ptr()
    assert other.data_ptr() != first.data_ptr()


def test_larger_pieces_and_other_types_get_new_memory() -> None:
    scratch = Scratch()
    small = scratch.piece("a", (2,), torch.zeros(1)).fill_(1)
    large = scratch.piece("a", (3,), torch.zeros(1)).fill_(2)
    double = scratch.piece("a", (3,), torch.zeros(1, dtype=torch.float64)).fill_(3)
    assert small.tolist() == [1, 1]
    assert large.tolist() == [2, 2, 2]
    assert double.dtype == torch.float64

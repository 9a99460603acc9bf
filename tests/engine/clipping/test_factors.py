# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from dpcohort.engine.clipping.factors import CLIP_SLACK, clip_factors


def test_small_gradients_are_left_alone_and_large_ones_brought_to_the_clip() -> None:
    norms = torch.tensor([0.0, 0.5, 0.99, 1.0, 3.0, 1e15], dtype=torch.float64)
    clipped = clip_factors(norms.square(), 1.0) * norms
    assert clipped[:3].tolist() == [0.0, 0.5, 0.99]
    assert torch.all(clipped <= 1.0)
    torch.testing.assert_close(clipped[3:], torch.full((3,), 1 - CLIP_SLACK).double())


def test_what_is_not_finite_gets_nothing() -> None:
    bad = torch.tensor([float("nan"), float("inf")])
    assert clip_factors(bad, torch.tensor([1.0, 2.0])).tolist() == [0.0, 0.0]

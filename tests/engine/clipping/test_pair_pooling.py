# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping.pair_pooling import PairPooling
from dpcohort.engine.clipping.scratch import Scratch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("size", [(6, 8), (7, 6), (6, 7), (9, 9)])
def test_it_is_torchs_to_the_bit(size: tuple[int, int], relu: bool, dtype: torch.dtype) -> None:
    # Rounded numbers, so that many windows hold ties, zeros and nothing positive.
    generator = torch.Generator().manual_seed(0)
    images = (torch.randn(5, 3, *size, generator=generator) * 2).round().to(dtype)
    images.requires_grad_()
    expected = F.max_pool2d(images, 2)
    expected = expected.relu() if relu else expected
    gradient = torch.randn(expected.shape, generator=generator).to(dtype)
    expected.backward(gradient)
    memory = images.detach().permute(0, 2, 3, 1).clone()
    pooling = PairPooling(memory, relu=relu, scratch=Scratch())
    pooled = pooling.pool(torch.empty_like(expected.permute(0, 2, 3, 1).contiguous()))
    assert torch.equal(pooled.permute(0, 3, 1, 2), expected)
    found = pooling.hand_back(gradient.permute(0, 2, 3, 1))
    assert found is memory
    assert torch.equal(found.permute(0, 3, 1, 2), images.grad)


def test_a_gradient_that_is_not_finite_stays_with_its_image() -> None:
    images = torch.randn(2, 4, 4, 1, generator=torch.Generator().manual_seed(1))
    gradient = torch.ones(2, 2, 2, 1)
    gradient[0] = float("inf")
    found = PairPooling(images, relu=False, scratch=Scratch()).hand_back(gradient)
    assert not torch.isfinite(found[0]).all()
    assert torch.isfinite(found[1]).all()

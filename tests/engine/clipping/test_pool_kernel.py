# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpcohort.engine.clipping import pool_kernel
from dpcohort.engine.clipping.pooling import MaxPool

LAYERS: list[tuple[Any, ...]] = [
    ((2, 2), (2, 2), (0, 0)),
    ((2, 2), (1, 1), (0, 0)),
    ((3, 2), (2, 1), (1, 0)),
    ((3, 3), (1, 3), (1, 1)),
    ((2, 2), (3, 3), (1, 1)),
]


def test_places_fit_in_a_byte() -> None:
    assert pool_kernel.LARGEST_WINDOW < 255


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernels_give_torchs_numbers(
    cuda: str, kernel: Any, stride: Any, padding: Any, dtype: torch.dtype, channels_last: bool
) -> None:
    layer = nn.MaxPool2d(kernel, stride, padding)
    # Few different values: many ties.
    image = torch.randint(-2, 3, (9, 5, 13, 11), device=cuda).to(dtype)
    image[0, 0, 0] = float("-inf")
    # Where a window is all -inf, torch's two layouts differ in who gets the gradient; ours is as
    # its plain one.
    memory = torch.channels_last if channels_last else torch.contiguous_format
    results = []
    for pool, given in ((layer, image), (MaxPool(layer), image.contiguous(memory_format=memory))):
        inputs = given.clone().requires_grad_()
        out = pool(inputs)
        weight = torch.linspace(1, 2, out.numel(), dtype=dtype, device=cuda).view(out.shape)
        (out * weight).sum().backward()
        results.append((out.detach(), inputs.grad))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-6, atol=1e-6)


def test_not_a_number_comes_through(cuda: str) -> None:
    image = torch.zeros(1, 1, 4, 4, device=cuda)
    image[0, 0, 1, 1] = float("nan")
    out = MaxPool(nn.MaxPool2d(2))(image)
    assert torch.isnan(out).flatten().tolist() == [True, False, False, False]

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch

from dpcohort.engine.clipping import patch_kernel
from dpcohort.engine.clipping.convolution import patch_lines, patches

SHAPES: list[tuple[Any, ...]] = [
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((4, 4), (2, 2), (0, 0), (1, 1)),
    ((2, 3), (2, 1), (1, 2), (2, 1)),
    ((1, 2), (1, 1), (0, 0), (1, 3)),
]


@pytest.mark.parametrize("channels", [1, 3, 128])
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_writes_the_same_patches(
    cuda: str, kernel: Any, stride: Any, padding: Any, dilation: Any, channels: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    if not patch_kernel.AVAILABLE:
        pytest.skip("there is no Triton here")
    image = torch.randn(5, channels, 9, 12, dtype=dtype)
    options = (kernel, stride, padding, dilation)
    there = image.to(cuda).contiguous(memory_format=torch.channels_last)
    expected, size = patches(image, *options)
    got, got_size = patches(there, *options)
    assert got_size == size
    assert torch.equal(got.cpu(), expected)
    for ones in (True, False):
        lines, size = patch_lines(image, *options, ones=ones)
        got, got_size = patch_lines(there, *options, ones=ones)
        assert got_size == size
        assert torch.equal(got.cpu(), lines)


def test_without_a_gpu_patches_are_views_of_torch() -> None:
    image = torch.randn(2, 3, 5, 5)
    got, _ = patches(image, (3, 3), (1, 1), (1, 1), (1, 1))
    unfolded = torch.nn.functional.unfold(image, 3, padding=1)
    expected = unfolded.view(2, 3, 3, 3, 25).permute(0, 4, 2, 3, 1).reshape(2, 25, 27)
    assert torch.equal(got, expected)

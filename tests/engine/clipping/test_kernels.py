# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpcohort.engine.clipping import kernels
from dpcohort.engine.clipping.convolution import patches
from dpcohort.engine.clipping.network import MaxPool

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
    if not kernels.AVAILABLE:
        pytest.skip("there is no Triton here")
    image = torch.randn(5, channels, 9, 12, dtype=dtype)
    options = (kernel, stride, padding, dilation)
    there = image.to(cuda).contiguous(memory_format=torch.channels_last)
    expected, size = patches(image, options)
    got, got_size = patches(there, options)
    assert got_size == size
    assert torch.equal(got.cpu(), expected)
    for ones in (True, False):
        lines, size = patches(image, options, by_line=True, ones=ones)
        got, got_size = patches(there, options, by_line=True, ones=ones)
        assert got_size == size
        assert torch.equal(got.cpu(), lines)


def test_without_a_gpu_patches_are_views_of_torch() -> None:
    image = torch.randn(2, 3, 5, 5)
    got, _ = patches(image, ((3, 3), (1, 1), (1, 1), (1, 1)))
    unfolded = torch.nn.functional.unfold(image, 3, padding=1)
    expected = unfolded.view(2, 3, 3, 3, 25).permute(0, 4, 2, 3, 1).reshape(2, 25, 27)
    assert torch.equal(got, expected)


LAYERS: list[tuple[Any, ...]] = [
    ((2, 2), (2, 2), (0, 0)),
    ((2, 2), (1, 1), (0, 0)),
    ((3, 2), (2, 1), (1, 0)),
    ((3, 3), (1, 3), (1, 1)),
    ((2, 2), (3, 3), (1, 1)),
]


def test_places_fit_in_a_byte() -> None:
    assert kernels.LARGEST_WINDOW < 255


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
    ours = MaxPool(kernel, stride, padding)
    for pool, given in ((layer, image), (ours, image.contiguous(memory_format=memory))):
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
    out = MaxPool(2)(image)
    assert torch.isnan(out).flatten().tolist() == [True, False, False, False]

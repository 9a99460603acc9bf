# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine import cross_entropy
from dpcohort.engine.clipping import ClippedNetwork, PerExampleGradients
from dpcohort.engine.clipping.convolution import BankedConvolution, patches
from dpcohort.engine.clipping.kernel_rows import has_kernel_rows


@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_patches_are_those_of_unfold(
    padding: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> None:
    images = torch.randn(2, 3, 7, 8)
    found, (height, width) = patches(images, (3, 2), stride, padding, dilation)
    expected = F.unfold(images, (3, 2), dilation=dilation, padding=padding, stride=stride)
    assert found.shape[1] == height * width == expected.shape[2]
    reordered = found.view(2, height * width, 3, 2, 3).permute(0, 4, 2, 3, 1)
    assert torch.equal(reordered.reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("layer", "supported"),
    [
        (nn.Conv2d(2, 3, 3, padding="same"), True),
        (nn.Conv2d(2, 3, 3, padding="valid"), True),
        (nn.Conv2d(2, 3, 2, padding="same"), False),
        (nn.Conv2d(2, 4, 3, groups=2), False),
        (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), False),
        (nn.ConvTranspose2d(2, 4, 3), False),
        (nn.Conv1d(2, 3, 3), True),
        (nn.Linear(2, 3), False),
    ],
)
def test_which_layers_have_the_fast_path(layer: nn.Module, supported: bool) -> None:
    assert BankedConvolution.supports(layer) is supported


def test_norms_of_wide_convolutions_are_those_of_torch_func() -> None:
    """With many channels gradients are formed kernel row by kernel row."""
    assert has_kernel_rows(16, (3, 3), (1, 1))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 81, 3))
    images = torch.randn(5, 16, 9, 9, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 0, 1])
    net = ClippedNetwork(model.double(), cross_entropy, images, targets)
    weights = net.layout.flatten(model)
    assert net.path.kind == "banked", net.path.reason
    norms = net.squared_norms(weights[None], images[None], targets[None])[0]
    raw = PerExampleGradients(model, cross_entropy)(weights, images, targets)
    torch.testing.assert_close(norms, raw.square().sum(1), rtol=1e-9, atol=1e-12)

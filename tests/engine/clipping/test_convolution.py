# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine import cross_entropy
from dpcohort.engine.clipping import ClippedNetwork, clip_factors, per_example_gradients
from dpcohort.engine.clipping._convolution import StackedConvolution, patches


@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3), (1, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (1, 3)])
def test_patches_are_those_of_unfold(
    padding: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> None:
    images = torch.randn(2, 3, 7, 8)
    found, (height, width) = patches(images, ((3, 2), stride, padding, dilation))
    expected = F.unfold(images, (3, 2), dilation=dilation, padding=padding, stride=stride)
    assert found.shape[1] == height * width == expected.shape[2]
    reordered = found.view(2, height * width, 3, 2, 3).permute(0, 4, 2, 3, 1)
    assert torch.equal(reordered.reshape(expected.shape), expected)
    lines, _ = patches(images, ((3, 2), stride, padding, dilation), by_line=True, ones=True)
    assert torch.equal(lines[:, :-1], expected)
    assert bool((lines[:, -1] == 1).all())


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
    assert StackedConvolution.supports(layer) is supported


def test_norms_of_wide_convolutions_are_those_of_torch_func(squared_norms: Any) -> None:
    """With many channels gradients are formed from columns of whole patches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 81, 3))
    images = torch.randn(5, 16, 9, 9, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 0, 1])
    net = ClippedNetwork(model.double(), cross_entropy, images, targets)
    weights = net.layout.flatten(model)
    assert net.path.kind == "stacked", net.path.reason
    norms = squared_norms(net, weights[None], images[None], targets[None])[0]
    raw = per_example_gradients(model, cross_entropy)(weights, images, targets)
    torch.testing.assert_close(norms, raw.square().sum(1), rtol=1e-9, atol=1e-12)


def network(*, relu: bool, bias: bool) -> nn.Module:
    """Few channels, then many; odd sizes; pooling with and without a ReLU."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=bias),
            *([nn.ReLU()] if relu else []),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 5, 3, padding=1, bias=bias),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(5, 2, 1),
            nn.Flatten(),
            nn.Linear(12, 3),
        ).double()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("relu", "bias"), [(True, True), (False, True), (True, False)])
def test_norms_and_sums_of_pooled_convolutions_are_those_of_torch_func(
    squared_norms: Any, relu: bool, bias: bool, groups: int
) -> None:
    model = network(relu=relu, bias=bias)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 21, 1, 9, 12, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, (4, 21), generator=generator)
    net = ClippedNetwork(model, cross_entropy, inputs[0], targets[0])
    assert net.path.kind == "stacked"
    own = net.layout.flatten(model)
    weights = own + 0.1 * torch.randn(groups, own.numel(), generator=generator).double()
    slow, clip = per_example_gradients(model, cross_entropy), torch.full((4,), 0.4).double()
    norms = squared_norms(net, weights, inputs, targets)
    sums = net.clipped_sums(weights, inputs, targets, clip=clip)
    for k in range(4):
        raw = slow(weights[k * groups // 4], inputs[k], targets[k])
        expected = raw.square().sum(1)
        torch.testing.assert_close(norms[k], expected, rtol=1e-9, atol=1e-15)
        clipped = clip_factors(expected, clip[k]) @ raw
        torch.testing.assert_close(sums[k], clipped, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_broken_record_adds_nothing_and_leaves_nothing_behind(broken: float) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1, 6, 1, 9, 12, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, (1, 6), generator=generator)
    model, clip = network(relu=True, bias=True), torch.full((1,), 0.3).double()
    net = ClippedNetwork(model, cross_entropy, inputs[0, :3], targets[0, :3])
    weights = net.layout.flatten(model)[None]
    others = net.clipped_sums(weights, inputs[:, 1:], targets[:, 1:], clip=clip).clone()
    whole = net.clipped_sums(weights, inputs, targets, clip=clip).clone()
    torn = inputs.clone()
    torn[0, 0, 0, 0, 0] = broken
    found = net.clipped_sums(weights, torn, targets, clip=clip)
    torch.testing.assert_close(found, others, rtol=1e-12, atol=1e-14)
    assert net.raw_nonfinite_count == 1
    again = net.clipped_sums(weights, inputs, targets, clip=clip)
    assert torch.equal(again, whole)

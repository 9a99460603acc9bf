# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dpcohort.engine.clipping import ClippedNetwork, FlatLayout, cross_entropy
from dpcohort.engine.clipping import _kernels as kernels
from dpcohort.engine.clipping._convolution import StackedConvolution
from dpcohort.engine.clipping._network import MaxPool

CONVOLUTIONS: list[tuple[Any, ...]] = [
    (1, 16, (28, 28), ((8, 8), (2, 2), (3, 3), (1, 1))),
    (16, 32, (13, 13), ((4, 4), (2, 2), (0, 0), (1, 1))),
    (3, 5, (8, 7), ((3, 3), (1, 1), (1, 1), (1, 1))),
    (4, 70, (6, 5), ((2, 3), (2, 1), (1, 2), (1, 1))),
    (32, 64, (9, 9), ((3, 3), (1, 1), (1, 1), (1, 1))),
    (20, 18, (12, 12), ((3, 3), (3, 3), (0, 0), (1, 1))),
    (3, 6, (9, 9), ((3, 2), (1, 2), (1, 0), (2, 3))),
]


@pytest.mark.parametrize(("channels", "outputs", "size", "geometry"), CONVOLUTIONS)
@pytest.mark.parametrize("tf32", [False, True])
def test_the_kernels_of_a_convolution_give_torchs_numbers(
    cuda: str, channels: int, outputs: int, size: Any, geometry: Any, tf32: bool
) -> None:
    if not kernels.AVAILABLE:
        pytest.skip("there is no Triton here")
    groups, each = 3, 4
    torch.manual_seed(0)
    x = torch.randn(groups * each, channels, *size)
    layer = nn.Conv2d(channels, outputs, *geometry)
    layout = FlatLayout(layer)
    stack = torch.randn(groups, layout.dimension)
    expected: dict[str, list[torch.Tensor]] = {"out": [], "inputs": [], "weight": [], "bias": []}
    gradient = torch.randn(groups * each, *layer(x).shape[1:])
    for i, image in enumerate(x):
        own = {n: p.double() for n, p in layout.unflatten(stack[i // each]).items()}
        leaves = [v.requires_grad_() for v in (image[None].double(), own["weight"], own["bias"])]
        out = torch.nn.functional.conv2d(leaves[0], leaves[1], leaves[2], *geometry[1:])
        found = torch.autograd.grad((out * gradient[i]).sum(), leaves)
        values = (out[0], found[0][0], found[1].permute(0, 2, 3, 1).flatten(1), found[2])
        for name, value in zip(expected, values, strict=True):
            expected[name].append(value.detach())
    stacked = StackedConvolution(layer, "", layout)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        stacked.bind(stack.to(cuda), len(x))
        there, slope = (v.to(cuda) for v in (x, gradient))
        got = {"out": stacked.compute(there)}
        norms = stacked.observe(slope)
        got |= {"inputs": stacked.input_gradient(slope)}
        got |= {"weight": stacked.kept["formed"], "bias": stacked.kept["bias"]}
    finally:
        torch.backends.cudnn.allow_tf32 = before
    for name, values in expected.items():
        wanted = torch.stack(values)
        gap = float((got[name].cpu().double() - wanted).norm() / wanted.norm())
        assert gap < (2e-3 if tf32 else 2e-6), name
    # Whatever the rounding, the norm is that of the very numbers that were formed.
    formed = got["weight"].double().square().sum((1, 2)) + got["bias"].double().square().sum(1)
    assert torch.allclose(norms.double(), formed, rtol=2e-6)


@pytest.mark.parametrize("tf32", [False, True])
def test_a_formed_gradient_does_not_depend_on_the_examples_beside_it(cuda: str, tf32: bool) -> None:
    layer = nn.Conv2d(3, 8, 3, padding=1)
    layout = FlatLayout(layer)
    stacked = StackedConvolution(layer, "", layout)
    x, g = torch.randn(5, 3, 9, 9, device=cuda), torch.randn(5, 8, 9, 9, device=cuda)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        seen = []
        for others in (x, torch.full_like(x, float("nan"))):
            images = torch.cat([x[:1], others[1:]])
            stacked.bind(layout.flatten(layer)[None].to(cuda), 5, apart=True)
            stacked.compute(images)
            stacked.observe(g)
            seen.append([part[0][0].clone() for part in stacked.own_gradients()])
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert len(seen[0]) == 2
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


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


@pytest.mark.parametrize("pool", [(2, 2, 0), (3, 1, 1)])
def test_a_convolution_leaves_tanh_and_bias_to_what_comes_next(cuda: str, pool: Any) -> None:
    """Sums of clipped gradients are those of the processor, for one model and for a stack."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1), nn.Tanh(),
        nn.Conv2d(40, 24, 3, padding=1), nn.Tanh(), nn.MaxPool2d(*pool),
        nn.Conv2d(24, 30, 3, padding=1), nn.Tanh(), nn.Conv2d(30, 20, 2), nn.Tanh(),
        nn.Flatten(), nn.LazyLinear(4),
    )  # fmt: skip
    x, y = 3 * torch.randn(12, 3, 8, 8), torch.randint(0, 4, (12,))
    model(x)
    layout = FlatLayout(model)
    clip = torch.full((1,), 0.05)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        for groups in (1, 2):
            stack = layout.flatten(model) + 0.05 * torch.randn(groups, layout.dimension)
            sums = []
            for device, dtype in (("cpu", torch.float64), (cuda, torch.float32)):
                there = copy.deepcopy(model).to(device, dtype)
                inputs, targets = x.to(device, dtype), y.to(device)
                network = ClippedNetwork(there, cross_entropy, inputs[:3], targets[:3])
                assert network.path.kind == "stacked"
                total = torch.zeros(groups, layout.dimension, device=device, dtype=dtype)
                network.clipped_sums(
                    stack.to(device, dtype),
                    inputs.view(groups, -1, *x.shape[1:]),
                    targets.view(groups, -1),
                    clip=clip.expand(groups).to(device, dtype),
                    total=total,
                )
                sums.append(total.cpu().double())
            assert float((sums[0] - sums[1]).norm() / sums[0].norm()) < 1e-5
    finally:
        torch.backends.cudnn.allow_tf32 = before

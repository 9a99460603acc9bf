# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from dpcohort.engine import cross_entropy
from dpcohort.engine.clipping import (
    ClippedNetwork,
    PerExampleGradients,
    clip_factors,
    pooled_convolution,
)
from dpcohort.engine.clipping.pooled_convolution import PooledConvolution, take_pooling


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


@pytest.mark.parametrize("at_a_time", [1 << 30, 1], ids=["at once", "in parts"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("relu", "bias"), [(True, True), (False, True), (True, False)])
def test_norms_and_sums_are_those_of_torch_func(
    relu: bool, bias: bool, groups: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_convolution, "_PART_BYTES", at_a_time)
    model = network(relu=relu, bias=bias)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 21, 1, 9, 12, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, (4, 21), generator=generator)
    net = ClippedNetwork(model, cross_entropy, inputs[0], targets[0])
    assert net.path.kind == "banked"
    assert [type(layer) is PooledConvolution for layer in net._layers] == [True, True, False, False]
    own = net.layout.flatten(model)
    weights = own + 0.1 * torch.randn(groups, own.numel(), generator=generator).double()
    slow, clip = PerExampleGradients(model, cross_entropy), torch.full((4,), 0.4).double()
    for _ in range(2):  # memory is used again
        norms = net.squared_norms(weights, inputs, targets)
        sums = net.clipped_sums(weights, inputs, targets, clip=clip)
        for k in range(4):
            raw = slow(weights[k * groups // 4], inputs[k], targets[k])
            expected = raw.square().sum(1)
            torch.testing.assert_close(norms[k], expected, rtol=1e-9, atol=1e-15)
            clipped = clip_factors(expected, clip[k]) @ raw
            torch.testing.assert_close(sums[k], clipped, rtol=1e-9, atol=1e-13)


def test_batches_of_any_size_keep_a_bounded_number_of_memories() -> None:
    model = network(relu=True, bias=True)
    inputs = torch.randn(30, 1, 9, 12, generator=torch.Generator().manual_seed(0)).double()
    targets = torch.zeros(30, dtype=torch.int64)
    net = ClippedNetwork(model, cross_entropy, inputs, targets)
    weights = net.layout.flatten(model)[None]
    whole = net.squared_norms(weights, inputs[None], targets[None])[0]
    for count in range(1, 31):
        found = net.squared_norms(weights, inputs[None, :count], targets[None, :count])[0]
        torch.testing.assert_close(found, whole[:count], rtol=1e-12, atol=0)
    for layer in net._layers[:2]:
        assert len(layer._by_lines) + len(layer._kept_rows) <= 4


@pytest.mark.parametrize(
    ("pool", "taken"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((2, 2), stride=2), True),
        (nn.MaxPool2d(2, stride=1), False),
        (nn.MaxPool2d(3), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d(2, return_indices=True), False),
        (nn.AvgPool2d(2), False),
    ],
)
def test_which_pooling_is_taken(pool: nn.Module, taken: bool) -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), pool), nn.ReLU())
    assert take_pooling(model) == ({"0.0": False} if taken else {})
    assert (type(model[0][1]) is nn.Identity) is taken


def test_layers_may_have_names_of_their_own() -> None:
    layers = {"see": nn.Conv2d(1, 2, 3), "pool": nn.MaxPool2d(2), "bend": nn.ReLU()}
    model = nn.Sequential(OrderedDict(layers))
    assert take_pooling(model) == {"see": True}
    whole = nn.Sequential(OrderedDict(eyes=nn.Sequential(OrderedDict(layers)), flat=nn.Flatten()))
    net = ClippedNetwork(
        whole, cross_entropy, torch.zeros(3, 1, 6, 6), torch.zeros(3, dtype=torch.int64)
    )
    assert net.path.kind == "banked"
    assert [type(layer) for layer in net._layers] == [PooledConvolution]


@pytest.mark.parametrize(
    ("layer", "supported"),
    [
        (nn.Conv2d(1, 2, 3), True),
        (nn.Conv2d(16, 2, 3), True),
        (nn.Conv2d(16, 2, 3, stride=2), False),
        (nn.Conv2d(16, 2, 1), False),
        (nn.Conv2d(16, 16, 3, groups=2), False),
        (nn.Conv1d(1, 2, 3), False),
    ],
)
def test_which_convolutions_do_the_pooling(layer: nn.Module, supported: bool) -> None:
    assert PooledConvolution.supports(layer) is supported


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_broken_record_adds_nothing_and_leaves_nothing_in_kept_memory(broken: float) -> None:
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

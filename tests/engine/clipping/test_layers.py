# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpcohort.engine.clipping import ClippedNetwork, FlatLayout, per_example_gradients
from dpcohort.engine.clipping._layers import (
    StackedLinear,
    add_outer_sums,
    gram_is_cheaper,
    outer_sum_norms,
)


def stacked() -> StackedLinear:
    layer = nn.Linear(3, 2)
    return StackedLinear(layer, "", FlatLayout(layer))


def test_a_layer_used_twice_in_a_pass_says_so() -> None:
    layer = stacked()
    layer.bind(torch.zeros(1, 8), 4)
    layer(torch.zeros(4, 3))
    with pytest.raises(NotImplementedError, match="more than once"):
        layer(torch.zeros(4, 3))


def test_rows_that_are_not_the_examples_are_noticed() -> None:
    layer = stacked()
    layer.bind(torch.zeros(1, 8), 4)
    with pytest.raises(NotImplementedError, match="got 5 rows for 4"):
        layer(torch.zeros(5, 3))


def test_a_layer_outside_of_a_pass_says_so() -> None:
    with pytest.raises(NotImplementedError, match="outside of a pass"):
        stacked()(torch.zeros(4, 3))


SHAPES = [(1, 3, 4), (2, 30, 20), (6, 3, 4)]  # positions, inputs, outputs


def test_shapes_cover_all_three_ways() -> None:
    assert [p > 1 and gram_is_cheaper(p, i, o) for p, i, o in SHAPES] == [False, True, False]


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_and_sums(shape: tuple[int, int, int]) -> None:
    positions, inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(10, positions, inputs, dtype=torch.float64, generator=generator)
    g = torch.randn(10, positions, outputs, dtype=torch.float64, generator=generator)
    formed = torch.einsum("nto,nti->noi", g, a)
    norms, kept = outer_sum_norms(a, g)
    torch.testing.assert_close(norms, formed.square().sum((1, 2)))
    factors = torch.rand(2, 5, dtype=torch.float64, generator=generator)
    expected = torch.einsum("kb,kboi->koi", factors, formed.view(2, 5, outputs, inputs))
    total = torch.zeros(2, outputs, inputs, dtype=torch.float64)
    torch.testing.assert_close(add_outer_sums(total, a, g, kept, factors), expected)


def test_cancelling_positions_do_not_hide_a_gradient() -> None:
    """Two positions that almost cancel: in 32 bits the Gram terms would lose the rest."""
    a = torch.randn(1, 1, 400, generator=torch.Generator().manual_seed(0))
    g = torch.randn(1, 1, 400, generator=torch.Generator().manual_seed(1))
    a, g = torch.cat([a, a * (1 + 1e-5)], 1), torch.cat([g, -g], 1)
    assert gram_is_cheaper(2, 400, 400)
    exact = torch.bmm(g.double().transpose(1, 2), a.double()).square().sum((1, 2))
    found = outer_sum_norms(a, g)[0].double()
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=0.0)


def test_subclasses_and_frozen_layers_take_the_slow_path() -> None:
    class Own(nn.Linear):
        pass

    assert StackedLinear.supports(nn.Linear(2, 2))
    assert not StackedLinear.supports(Own(2, 2))
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(requires_grad=False)
    assert not StackedLinear.supports(frozen)


@pytest.mark.parametrize("length", [3, 64, 65, 200])
def test_repeated_words_add_up_at_any_length(squared_norms: Any, length: int) -> None:
    model = nn.Embedding(5, 3, padding_idx=1).double()
    tokens = torch.randint(0, 5, (8, length), generator=torch.Generator().manual_seed(0))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs * outputs.cumsum(1)).sum((1, 2))

    targets = torch.zeros(8)
    net = ClippedNetwork(model, loss, tokens, targets)
    assert net.path.kind == "stacked"
    weights = net.layout.flatten(model)
    raw = per_example_gradients(model, loss)(weights, tokens, targets)
    norms = squared_norms(net, weights[None], tokens[None], targets[None])[0]
    torch.testing.assert_close(norms, raw.square().sum(1), rtol=1e-9, atol=1e-12)
    sums = net.clipped_sums(
        weights[None], tokens[None], targets[None], clip=torch.full((1,), 1e9).double()
    )
    torch.testing.assert_close(sums[0], raw.sum(0), rtol=1e-9, atol=1e-12)


CASES = [
    (nn.GroupNorm(2, 4), (4,)),
    (nn.GroupNorm(2, 4), (4, 3)),
    (nn.GroupNorm(4, 4), (4, 3, 2)),
    (nn.LayerNorm(4), (4,)),
    (nn.LayerNorm((3, 4)), (2, 3, 4)),
    (nn.LayerNorm(4, bias=False), (3, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_scale_and_shift(layer: nn.Module, shape: tuple[int, ...]) -> None:
    model = layer.double()
    inputs = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).double()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.pow(3).flatten(1).sum(1)

    targets = torch.zeros(6)
    net = ClippedNetwork(model, loss, inputs, targets)
    assert net.path.kind == "stacked"
    weights = net.layout.flatten(model) + 0.3
    raw = per_example_gradients(model, loss)(weights, inputs, targets)
    clip = torch.full((2,), float(raw.norm(dim=1).median())).double()
    sums = net.clipped_sums(
        weights[None], inputs.unflatten(0, (2, 3)), targets.view(2, 3), clip=clip
    )
    clipped = raw * (clip[0] * (1 - 1e-5) / raw.norm(dim=1)).clamp(max=1.0)[:, None]
    torch.testing.assert_close(sums, clipped.view(2, 3, -1).sum(1), rtol=1e-9, atol=1e-12)


def test_a_token_counted_from_the_end_stays_in_its_own_gradient():
    """Tables of several records lie one after the other: -1 of one must not be the last before."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2))
    loss = lambda outputs, targets: outputs[:, 0]  # noqa: E731
    tokens = torch.tensor([[0, 1, 2, 3], [4, -1, 0, 0], [1, 1, -5, 2]])
    network = ClippedNetwork(model, loss, tokens.clamp(min=0), torch.zeros(3))
    weights = network.layout.flatten(model)
    found, wanted = (
        network.clipped_sums(
            weights[None], some[:, None], torch.zeros(3, 1), clip=torch.full((3,), 1e9)
        )
        for some in (tokens, tokens % 5)
    )
    assert torch.equal(found, wanted)
    assert found[0, 12:15].abs().sum() == 0  # the first record does not have the last word

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpcohort.engine.clipping import ClippedNetwork, PerExampleGradients
from dpcohort.engine.clipping.embedding import BankedEmbedding


@pytest.mark.parametrize("length", [3, 64, 65, 200])
def test_repeated_words_add_up_at_any_length(length: int) -> None:
    model = nn.Embedding(5, 3, padding_idx=1).double()
    tokens = torch.randint(0, 5, (8, length), generator=torch.Generator().manual_seed(0))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs * outputs.cumsum(1)).sum((1, 2))

    targets = torch.zeros(8)
    net = ClippedNetwork(model, loss, tokens, targets)
    assert net.path.kind == "banked"
    weights = net.layout.flatten(model)
    raw = PerExampleGradients(model, loss)(weights, tokens, targets)
    norms = net.squared_norms(weights[None], tokens[None], targets[None])[0]
    torch.testing.assert_close(norms, raw.square().sum(1), rtol=1e-9, atol=1e-12)
    sums = net.clipped_sums(
        weights[None], tokens[None], targets[None], clip=torch.full((1,), 1e9).double()
    )
    torch.testing.assert_close(sums[0], raw.sum(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "supported"),
    [
        (nn.Embedding(3, 2), True),
        (nn.Embedding(3, 2, max_norm=1.0), False),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), False),
        (nn.Embedding(3, 2, sparse=True), False),
        (nn.EmbeddingBag(3, 2), False),
    ],
)
def test_which_layers_have_the_fast_path(layer: nn.Module, supported: bool) -> None:
    assert BankedEmbedding.supports(layer) is supported

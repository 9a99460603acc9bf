# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpcohort.engine.clipping import ClippedNetwork, PerExampleGradients

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
    assert net.path.kind == "banked"
    weights = net.layout.flatten(model) + 0.3
    raw = PerExampleGradients(model, loss)(weights, inputs, targets)
    clip = torch.full((2,), float(raw.norm(dim=1).median())).double()
    sums = net.clipped_sums(
        weights[None], inputs.unflatten(0, (2, 3)), targets.view(2, 3), clip=clip
    )
    clipped = raw * (clip[0] * (1 - 1e-5) / raw.norm(dim=1)).clamp(max=1.0)[:, None]
    torch.testing.assert_close(sums, clipped.view(2, 3, -1).sum(1), rtol=1e-9, atol=1e-12)

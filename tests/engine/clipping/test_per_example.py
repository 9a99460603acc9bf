# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpcohort.engine import cross_entropy
from dpcohort.engine.clipping import FlatLayout, per_example_gradients, refuse_unfit_layers
from dpcohort.errors import InputError


def test_rows_are_the_gradients_of_single_examples(network: Any) -> None:
    targets = torch.zeros(60, dtype=torch.int64)
    slow = per_example_gradients(network.model, cross_entropy, vectorised=False)
    weights = FlatLayout(network.model).flatten(network.model)
    raw = slow(weights, network.inputs[:4], targets[:4])
    for i in range(4):
        network.model.zero_grad()
        cross_entropy(network.model(network.inputs[i : i + 1]), targets[:1]).sum().backward()
        trained = [p for p in network.model.parameters() if p.requires_grad]
        expected = torch.cat([p.grad.reshape(-1) for p in trained])
        torch.testing.assert_close(raw[i], expected, rtol=1e-9, atol=1e-14)
    assert slow(weights, network.inputs[:0], targets[:0]).shape == (0, weights.numel())
    if network.path != "loop":
        fast = per_example_gradients(network.model, cross_entropy)
        torch.testing.assert_close(
            fast(weights, network.inputs[:4], targets[:4]), raw, rtol=1e-9, atol=1e-14
        )


def test_recurrent_models_are_looped_not_mapped():
    from dpcohort.engine.clipping import can_be_mapped

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            return self.cells(x)[0][:, -1]

    def loss(outputs, targets):
        return outputs.sum(1)

    assert not can_be_mapped(Recurrent(), loss, torch.ones(2, 5, 3), torch.ones(2))
    assert can_be_mapped(nn.Linear(3, 4), loss, torch.ones(2, 3), torch.ones(2))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(3), "GroupNorm"),
        (nn.BatchNorm2d(3, track_running_stats=False), "GroupNorm"),
        (nn.InstanceNorm2d(3, track_running_stats=True), "GroupNorm"),
        (nn.Dropout(0.5), "p = 0"),
    ],
)
def test_unfit_layers_are_named(layer: nn.Module, words: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(layer))
    with pytest.raises(InputError, match=words) as error:
        refuse_unfit_layers(model)
    assert "'1.0'" in str(error.value)


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(3).eval(), nn.Dropout(0.0), nn.Dropout(0.5).eval(), nn.GroupNorm(1, 3),
     nn.InstanceNorm2d(3)],
)  # fmt: skip
def test_fit_layers_pass(layer: nn.Module) -> None:
    refuse_unfit_layers(nn.Sequential(layer))

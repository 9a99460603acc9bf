# SPDX-License-Identifier: Apache-2.0
"""Frozen parts and adapters: every record's gradient is the plain loop's, on every path.

Libraries with hooks on layers have computed wrong gradients for adapters without a word.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpcohort.engine import BatchedEngine, Optimiser, ReferenceEngine
from dpcohort.engine.clipping import (
    ClippedNetwork,
    FlatLayout,
    cross_entropy,
    per_example_gradients,
)
from dpcohort.models import freeze

from ..conftest import seeded


class LoRA(nn.Module):
    """A frozen linear layer and a trained one of rank r beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(requires_grad=False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


def _layers() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def _frozen(*prefixes: str) -> nn.Module:
    model = _layers()
    freeze(model, prefixes)
    return model


MODELS = {
    "first layer": lambda: _frozen("0"),
    "a layer between": lambda: _frozen("4"),
    "last layer": lambda: _frozen("6"),
    "a bias": lambda: _frozen("4.bias"),
    "all but the last": lambda: _frozen("0", "1", "4"),
    "adapters": lambda: nn.Sequential(nn.Flatten(), LoRA(36, 8), nn.Tanh(), LoRA(8, 3)),
}


def _records() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(7, 1, 6, 6, generator=rng).double(), torch.arange(7) % 3


def _one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        cross_entropy(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_plain_loop(name):
    torch.manual_seed(0)
    model, (x, y) = MODELS[name]().double(), _records()
    expected = _one_by_one(model, x, y)
    weights = FlatLayout(model).flatten(model)
    net = ClippedNetwork(model, cross_entropy, x, y)
    assert net.path.kind == ("vmap" if name == "a bias" else "stacked")
    assert torch.allclose(net.gradients(weights, x, y), expected, atol=1e-12)
    mapped = per_example_gradients(model, cross_entropy)
    assert torch.allclose(mapped(weights, x, y), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["all but the last", "adapters"])
def test_both_engines_train_alike_and_only_what_is_trained(name, make_plan, make_records):
    torch.manual_seed(0)
    model = MODELS[name]()
    plan = make_plan([20, 9, 15, 16], [[0, 1, 0], [2, 3, 3]], local_steps=2, clip=0.3)
    x = torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    records = make_records(x, [20, 9, 15, 16])
    found = []
    for kind in (ReferenceEngine, BatchedEngine):
        one = seeded(plan, records, 0, optimiser=Optimiser())
        engine = kind(model, [one])
        state = engine.initial_states()[0]
        for _ in engine.rounds([state]):
            pass
        found.append(state.parameters)
    start = FlatLayout(model).flatten(model).to(found[0])
    assert found[0].numel() == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert float((found[0] - found[1]).norm() / (found[0] - start).norm()) < 1e-5

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dpcohort.engine.clipping._network import MaxPool, exchange_pooling, pool_before_relu


def test_only_plain_pooling_is_exchanged() -> None:
    model = nn.Sequential(
        nn.MaxPool2d(2),
        nn.Sequential(nn.MaxPool2d((2, 3), stride=1, padding=1)),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(16),
        nn.MaxPool1d(2),
    )
    exchange_pooling(model)
    assert [type(layer) is MaxPool for layer in model] == [True] + [False] * 6
    assert type(model[1][0]) is MaxPool


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 1, padding=1)])
def test_outputs_and_gradients_keep_every_bit(pool: nn.Module, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Sequential(nn.ReLU(), pool), nn.Tanh())
    swapped = copy.deepcopy(model)
    pool_before_relu(swapped)
    assert type(swapped[0][0]) is type(pool)
    # Rounded numbers, so that many windows hold ties, zeros and nothing positive.
    images = (torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0)) * 2).round()
    outputs, gradients = [], []
    for net in (model, swapped):
        inputs = images.to(dtype).requires_grad_()
        result = net(inputs)
        result.pow(2).sum().backward()
        outputs.append(result.detach())
        gradients.append(inputs.grad)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(gradients[0], gradients[1])


def test_only_relu_and_plain_max_pooling_change_places() -> None:
    model = nn.Sequential(
        nn.Tanh(), nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(2), nn.ReLU(),
        nn.MaxPool2d(2, return_indices=True),
    )  # fmt: skip
    before = [type(layer) for layer in model]
    pool_before_relu(model)
    assert [type(layer) for layer in model] == before

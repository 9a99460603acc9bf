# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch
from torch import nn

from dpcohort.engine.clipping.banked import Bank
from dpcohort.engine.clipping.linear import BankedLinear
from dpcohort.engine.layout import FlatLayout


def test_each_group_of_rows_meets_its_own_weights() -> None:
    layer = nn.Linear(3, 2)
    banked = BankedLinear(layer, "", FlatLayout(layer))
    weights = torch.randn(2, 8)
    banked.bind(Bank(weights, draws=2, rows=4))
    inputs = torch.randn(4, 5, 3)
    outputs = banked(inputs)
    for group in (0, 1):
        matrix, bias = weights[group, :6].view(2, 3), weights[group, 6:]
        rows = slice(2 * group, 2 * group + 2)
        torch.testing.assert_close(outputs[rows], inputs[rows] @ matrix.t() + bias)


def test_subclasses_and_frozen_layers_take_the_slow_path() -> None:
    class Own(nn.Linear):
        pass

    assert BankedLinear.supports(nn.Linear(2, 2))
    assert not BankedLinear.supports(Own(2, 2))
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(requires_grad=False)
    assert not BankedLinear.supports(frozen)

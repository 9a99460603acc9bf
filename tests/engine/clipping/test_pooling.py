# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch
from torch import nn

from dpcohort.engine.clipping.pooling import MaxPool, exchange_pooling


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


def test_on_a_processor_it_is_torchs() -> None:
    layer = nn.MaxPool2d((2, 3), stride=(1, 2), padding=(1, 1))
    inputs = torch.randn(4, 3, 7, 8)
    assert torch.equal(MaxPool(layer)(inputs), layer(inputs))

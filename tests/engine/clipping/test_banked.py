# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import nn

from dpcohort.engine.clipping.banked import Bank, UnsupportedUseError
from dpcohort.engine.clipping.linear import BankedLinear
from dpcohort.engine.layout import FlatLayout


def banked() -> BankedLinear:
    layer = nn.Linear(3, 2)
    return BankedLinear(layer, "", FlatLayout(layer))


def test_rows_are_split_in_order() -> None:
    bank = Bank(torch.zeros(2, 1), draws=4, rows=8)
    rows = torch.arange(8)
    assert bank.by_group(rows).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert bank.by_draw(rows).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_layer_used_twice_in_a_pass_says_so() -> None:
    layer = banked()
    layer.bind(Bank(torch.zeros(1, 8), draws=1, rows=4))
    layer(torch.zeros(4, 3))
    with pytest.raises(UnsupportedUseError, match="more than once"):
        layer(torch.zeros(4, 3))


def test_rows_that_are_not_the_examples_are_noticed() -> None:
    layer = banked()
    layer.bind(Bank(torch.zeros(1, 8), draws=1, rows=4))
    with pytest.raises(UnsupportedUseError, match="5 rows for 4 examples"):
        layer(torch.zeros(5, 3))


def test_a_layer_outside_of_a_pass_says_so() -> None:
    with pytest.raises(UnsupportedUseError, match="outside of a pass"):
        banked()(torch.zeros(4, 3))

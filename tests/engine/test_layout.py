# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import nn

from dpcohort.engine.layout import FlatLayout
from dpcohort.errors import InputError


def test_flatten_and_assign_are_inverse() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    layout = FlatLayout(model)
    vector = torch.arange(13.0)
    layout.assign(model, vector)
    assert torch.equal(layout.flatten(model), vector)
    views = layout.unflatten(vector)
    assert all(torch.equal(views[n], p) for n, p in model.named_parameters())


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Linear(2, 3)
    model.bias.requires_grad_(requires_grad=False)
    layout = FlatLayout(model)
    assert list(layout.spans) == ["weight"]
    assert len(layout) == 1
    assert layout.spans["weight"].size == layout.dimension == 6


def test_spans_are_views_of_every_row() -> None:
    layout = FlatLayout(nn.Linear(2, 3))
    matrix = torch.zeros(4, 9)
    layout.spans["bias"].of(matrix).fill_(1.0)
    assert matrix[:, 6:].sum() == 12
    assert matrix.sum() == 12


def test_bad_models_and_vectors_are_refused() -> None:
    with pytest.raises(InputError, match="no parameter"):
        FlatLayout(nn.ReLU())
    with pytest.raises(InputError, match="parameters"):
        FlatLayout(nn.Linear(2, 3)).assign(nn.Linear(2, 3), torch.zeros(5))

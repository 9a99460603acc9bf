# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import nn

from dpcohort.engine.clipping import FlatLayout
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
    assert layout.places == {"weight": (slice(0, 6), (3, 2))}
    assert layout.dimension == 6


def test_bad_models_and_vectors_are_refused() -> None:
    with pytest.raises(InputError, match="no parameter"):
        FlatLayout(nn.ReLU())
    with pytest.raises(InputError, match="parameters"):
        FlatLayout(nn.Linear(2, 3)).assign(nn.Linear(2, 3), torch.zeros(5))

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from torch import nn

from dpcohort.engine.clipping.rules import refuse_unfit_layers
from dpcohort.errors import InputError


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

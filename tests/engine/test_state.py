# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.engine.rounds import EngineState
from dpcohort.errors import InputError


def test_arrays_bring_everything_back() -> None:
    state = EngineState(torch.randn(5), 7, torch.randn(5), torch.randn(5), torch.randn(2, 5))
    back = EngineState.from_arrays(state.to_arrays())
    assert back.next_round == 7
    for name in ("parameters", "momentum", "average", "memory"):
        assert torch.equal(getattr(back, name), getattr(state, name))


def test_copies_are_independent() -> None:
    state = EngineState(torch.zeros(2), average=torch.zeros(2))
    arrays, clone = state.to_arrays(), state.clone()
    state.parameters.fill_(1.0)
    assert not arrays["parameters"].any()
    assert not clone.parameters.any()
    assert clone.momentum is None


@pytest.mark.parametrize(
    "arrays",
    [
        {"parameters": np.zeros(3)},
        {"next_round": np.int64(3)},
        {"parameters": np.zeros((3, 1)), "next_round": np.int64(3)},
        {"parameters": np.zeros(3), "next_round": np.int64(3), "momentum": np.zeros(4)},
        {"parameters": np.zeros(3), "next_round": np.int64(3), "memory": np.zeros(3)},
        {"parameters": np.zeros(3), "next_round": np.int64(3), "memory": np.zeros((2, 4))},
    ],
)
def test_incomplete_states_are_refused(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(InputError, match="state"):
        EngineState.from_arrays(arrays)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dpcohort.engine.device_draws import CapturedPass, PackedStep, UncapturableError, pack


def packed(rows: list[int]) -> PackedStep:
    name = np.array([1, 2], dtype=np.uint64)
    return pack(
        [np.array(rows)], [name], scale=[1.0], spread=[0.0], clip=[1.0], multiple=1, pinned=True
    )


def body(step: PackedStep, weights: Tensor, sums: Tensor) -> None:
    sums.add_(weights * step.rows.sum())


def test_a_replay_uses_what_was_loaded(cuda: str) -> None:
    weights = torch.ones(1, 3, device=cuda)
    recording = CapturedPass(
        body, packed([1, 2]), weights, pool=torch.cuda.graph_pool_handle()
    )  # fmt: skip
    recording.load(packed([5, 6]))
    assert recording.replay().tolist() == [[11.0] * 3]
    recording.weights.fill_(2.0)
    assert recording.replay().tolist() == [[22.0] * 3]


def test_what_cannot_be_recorded_is_told(cuda: str) -> None:
    def waits(step: PackedStep, weights: Tensor, sums: Tensor) -> None:
        sums.add_(float(step.rows.sum()))

    weights = torch.ones(1, 3, device=cuda)
    with pytest.raises(UncapturableError):
        CapturedPass(waits, packed([1, 2]), weights, pool=torch.cuda.graph_pool_handle())
    # The device and torch's own generator are usable again.
    assert float(torch.ones(3, device=cuda).sum()) == 3.0
    assert torch.isfinite(torch.randn(5, device=cuda)).all()
    recording = CapturedPass(body, packed([1, 2]), weights, pool=torch.cuda.graph_pool_handle())
    assert recording.replay().tolist() == [[3.0] * 3]


def test_a_recording_that_differs_is_told(cuda: str) -> None:
    calls: list[int] = []

    def counts(step: PackedStep, weights: Tensor, sums: Tensor) -> None:
        calls.append(1)
        sums.add_(len(calls))

    weights = torch.ones(1, 3, device=cuda)
    with pytest.raises(UncapturableError, match="something else"):
        CapturedPass(counts, packed([1, 2]), weights, pool=torch.cuda.graph_pool_handle())

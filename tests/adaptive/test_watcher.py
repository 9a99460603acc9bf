# SPDX-License-Identifier: Apache-2.0
"""Sketches of noised updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.adaptive.watcher import WatchingAggregation
from dpcohort.aggregation import Cohort, Mean


def cohort(clients):
    one = np.ones(len(clients))
    return Cohort(
        round=0,
        clients=np.array(clients),
        draws=np.zeros(len(clients), dtype=np.int64),
        noise_multipliers=one,
        batch_sizes=one.astype(np.int64),
        noise_stds=one,
    )


def test_updates_pass_through_and_short_ones_are_kept_whole():
    watcher = WatchingAggregation(Mean(), width=4)
    updates = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert torch.equal(watcher.combine(updates, cohort([7, 2])), torch.tensor([2.0, 4.0]))
    assert watcher.sketches[7].tolist() == [1.0, 2.0]
    updates.zero_()  # the engine uses its memory again
    assert watcher.sketches[2].tolist() == [3.0, 6.0]


def test_sketches_keep_inner_products():
    torch.manual_seed(0)
    updates = torch.randn(2, 20_000)
    updates[1] += 0.5 * updates[0]
    watcher = WatchingAggregation(Mean(), width=2048)
    watcher.combine(updates, cohort([0, 1]))
    sketch = np.stack([watcher.sketches[0], watcher.sketches[1]])
    cosine = (sketch[0] @ sketch[1]) / np.linalg.norm(sketch[0]) / np.linalg.norm(sketch[1])
    true = torch.nn.functional.cosine_similarity(updates[0], updates[1], dim=0).item()
    assert cosine == pytest.approx(true, abs=0.1)


def test_arrays_bring_the_sketches_back():
    watcher = WatchingAggregation(Mean())
    watcher.combine(torch.tensor([[1.0, 2.0]]), cohort([3]))
    again = WatchingAggregation(Mean())
    again.take_arrays({**watcher.to_arrays(), "parameters": np.zeros(3)})
    assert list(again.sketches) == [3]
    assert again.sketches[3].tolist() == [1.0, 2.0]

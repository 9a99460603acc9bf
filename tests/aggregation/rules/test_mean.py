# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import torch

from dpcohort.aggregation import AggregationRule, Cohort, Mean
from dpcohort.aggregation.rules.mean import sum_of_rows


def test_a_client_drawn_twice_counts_twice() -> None:
    cohort = Cohort(
        round=0,
        clients=np.array([1, 1, 0]),
        draws=np.array([0, 1, 0]),
        noise_multipliers=np.ones(3),
        batch_sizes=np.ones(3, dtype=np.int64),
        noise_stds=np.ones(3),
    )
    rule: AggregationRule = Mean()
    updates = torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 3.0]])
    assert len(cohort) == 3
    assert rule.combine(updates, cohort).tolist() == [3.0, 1.0]


def test_threads_change_no_bit() -> None:
    """The engine lets this rule use all threads, and a run must repeat on every machine."""
    updates = torch.randn(10, 300_001, generator=torch.Generator().manual_seed(0))
    cohort = Cohort(
        round=0,
        clients=np.arange(10),
        draws=np.zeros(10, dtype=np.int64),
        noise_multipliers=np.ones(10),
        batch_sizes=np.ones(10, dtype=np.int64),
        noise_stds=np.ones(10),
    )
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(Mean().combine(updates, cohort))
            assert torch.equal(sum_of_rows(updates) / 10, found[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.allclose(found[0], updates.double().mean(0).float(), atol=1e-6)

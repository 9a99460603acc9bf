# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import torch

from dpcohort.aggregation import AggregationRule, Cohort, Mean


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

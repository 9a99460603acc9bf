# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpcohort.aggregation import AggregationRule, Cohort
from dpcohort.audit.claims import Claim
from dpcohort.audit.engines import GradientProbe, StepPlan, output_itself
from dpcohort.engine import BatchedEngine, ClientRecords, ReferenceEngine, Streams


class QuietestOnly:
    """A rule of one's own: the update with the least noise."""

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        return updates[int(np.argmin(cohort.noise_stds))].clone()


def test_engines_take_any_rule() -> None:
    plan = StepPlan.of(
        Claim(sampler="fixed"), cohorts=np.array([[0, 1, 0]]), size=4, batch_size=2, local_steps=1
    )
    plan.noise_multipliers[:] = [3.0, 0.0]
    records = ClientRecords(
        np.ones((4, 6)), np.zeros(4), indices=np.tile(np.arange(4), 2),
        offsets=np.array([0, 4, 8]), dtype=torch.float64,
    )  # fmt: skip
    rule: AggregationRule = QuietestOnly()
    engines: list[Any] = [ReferenceEngine, BatchedEngine]
    for engine in engines:
        built = engine(
            plan, GradientProbe(6), records, streams=Streams.seeded(0), aggregation=rule,
            loss=output_itself,
        )  # fmt: skip
        state = built.initial_state()
        start = state.parameters.clone()
        list(built.rounds(state))
        # Client 1 has no noise, and all its gradients are ones, clipped to norm 1.
        expected = torch.full((6,), 0.1 / 6**0.5, dtype=torch.float64)
        torch.testing.assert_close(start - state.parameters, expected, rtol=1e-4, atol=0.0)

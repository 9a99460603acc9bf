# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpcohort.aggregation import AggregationRule, Cohort
from dpcohort.aggregation.rule import combine_round
from dpcohort.audit.claims import Claim
from dpcohort.audit.engines import GradientProbe, StepPlan, output_itself
from dpcohort.engine import BatchedEngine, ClientRecords, ReferenceEngine, Streams
from dpcohort.errors import InputError


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


class _Own:
    """A rule of one's own that gives back what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def combine(self, updates: Tensor, cohort: Cohort) -> Any:
        return self.answer(updates)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda updates: updates, r"_Own gives back = \(2, 3\).*shape \(3,\)"),
        (lambda updates: updates.mean(0).numpy(), "_Own gives back = 'ndarray'"),
        (lambda updates: None, "_Own gives back = 'NoneType'"),
        (lambda updates: updates.mean(0) * float("nan"), "_Own made numbers that are not finite"),
        (lambda updates: {}["oops"], "_Own failed in combine: KeyError: 'oops'"),
    ],
    ids=["shape", "numpy", "none", "nan", "raises"],
)
def test_a_rule_of_ones_own_that_is_wrong_is_named(answer: Any, words: str) -> None:
    one = np.ones(2)
    cohort = Cohort(
        round=0, clients=np.array([0, 1]), draws=np.array([0, 0]), noise_multipliers=one,
        batch_sizes=np.array([1, 1]), noise_stds=one,
    )  # fmt: skip
    with pytest.raises(InputError, match=words):
        combine_round(_Own(answer), torch.ones(2, 3), cohort, None)


def test_numbers_that_were_not_finite_before_are_not_the_rules_fault() -> None:
    one = np.ones(1)
    cohort = Cohort(
        round=0, clients=np.array([0]), draws=np.array([0]), noise_multipliers=one,
        batch_sizes=np.array([1]), noise_stds=one,
    )  # fmt: skip
    broken = torch.tensor([[float("inf"), 1.0]])
    update, _ = combine_round(_Own(lambda updates: updates.mean(0)), broken, cohort, None)
    assert not torch.isfinite(update[0])

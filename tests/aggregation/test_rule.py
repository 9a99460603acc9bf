# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpcohort.aggregation import AggregationRule, Cohort, combine_round
from dpcohort.aggregation._rule import checked_updates, of_cohort
from dpcohort.audit import Claim, GradientProbe
from dpcohort.audit._under_test import output_itself, step_plan
from dpcohort.engine import BatchedEngine, ClientRecords, Experiment, ReferenceEngine, Streams
from dpcohort.errors import InputError


def test_a_cohort_holds_only_public_things() -> None:
    public = {"round", "clients", "draws", "noise_multipliers", "batch_sizes", "noise_stds"}
    public |= {"weights", "shares", "controls"}
    assert {field.name for field in fields(Cohort)} == public


class QuietestOnly:
    """A rule of one's own: the update with the least noise."""

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        return updates[int(np.argmin(cohort.noise_stds))].clone()


def test_engines_take_any_rule() -> None:
    plan = step_plan(
        Claim(sampler="fixed"), cohorts=np.array([[0, 1, 0]]), size=4, batch_size=2, local_steps=1
    )
    plan.noise_multipliers = np.array([3.0, 0.0])
    plan.noise = replace(plan.noise, multipliers=plan.noise_multipliers)
    records = ClientRecords(
        np.ones((4, 6)), np.zeros(4), indices=np.tile(np.arange(4), 2),
        offsets=np.array([0, 4, 8]), dtype=torch.float64,
    )  # fmt: skip
    rule: AggregationRule = QuietestOnly()
    engines: list[Any] = [ReferenceEngine, BatchedEngine]
    for engine in engines:
        built = engine(
            GradientProbe(6),
            [Experiment(plan=plan, records=records, streams=Streams.seeded(0), aggregation=rule)],
            loss=output_itself,
        )
        state = built.initial_states()[0]
        start = state.parameters.clone()
        list(built.rounds([state]))
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


def test_an_update_that_is_not_finite_names_its_sender(make_cohort):
    cohort = make_cohort([1.0, 1.0, 1.0], clients=[5, 9, 9])
    updates = torch.zeros(3, 2)
    assert checked_updates(updates, cohort) is updates
    updates[2, 1] = -torch.inf
    with pytest.raises(InputError, match=r"client 9 \(draw 1\) in round 3 is not finite"):
        checked_updates(updates, cohort)


@pytest.mark.parametrize("shape", [(2, 4), (3,), (0, 4)])
def test_there_is_a_row_for_each_draw(make_cohort, shape):
    with pytest.raises(InputError, match="shape of updates"):
        checked_updates(torch.zeros(shape), make_cohort([1.0, 1.0, 1.0]))


def test_entries_follow_the_draws(make_cohort):
    cohort = make_cohort([1.0, 1.0, 1.0], clients=[2, 0, 2])
    assert of_cohort("x", np.array([10.0, 20.0, 30.0]), cohort).tolist() == [30.0, 10.0, 30.0]
    with pytest.raises(InputError, match="client 2 is drawn"):
        of_cohort("x", np.array([10.0, 20.0]), cohort)

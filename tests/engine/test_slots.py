# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpcohort.engine import Experiment, Streams, cross_entropy
from dpcohort.engine.joining import joined
from dpcohort.engine.planned import cohort_of
from dpcohort.engine.slots import SlotRunner
from dpcohort.errors import InputError


def runner(make_plan: Any, make_records: Any, **options: Any) -> tuple[SlotRunner, Any]:
    plan = make_plan([6, 7], [[0, 1, 1]])
    records = make_records(torch.randn(13, 4), [6, 7])
    experiment = Experiment(plan=plan, records=records, streams=Streams.seeded(0))
    model = nn.Linear(4, 3).double()
    return SlotRunner(model, cross_entropy, [experiment], **options), plan


def test_two_draws_of_one_client_have_their_own_batch_and_noise(
    make_plan: Any, make_records: Any
) -> None:
    slots, plan = runner(make_plan, make_records)
    (updates,) = slots.updates([torch.zeros(15, dtype=torch.float64)], [cohort_of(plan, 0)])
    assert not torch.any(updates[1] == updates[2])


@pytest.mark.parametrize(
    ("options", "rows"), [({}, 4), ({"slots_per_pass": 1}, 4), ({"slots_per_pass": 2}, 6)]
)
def test_with_merged_noise_slots_add_to_a_few_lanes(
    make_plan: Any, make_records: Any, options: dict[str, Any], rows: int
) -> None:
    plan = make_plan([6, 7], [[0, 1, 1, 0, 0, 1]], noise=[0.0, 0.0])
    records = make_records(torch.randn(13, 4), [6, 7])
    cohorts, start = [cohort_of(plan, 0)], [torch.zeros(15, dtype=torch.float64)]
    found = []
    for merged in (False, True):
        experiment = Experiment(
            plan=plan, records=records, streams=Streams.seeded(0), merged_noise=merged
        )
        slots = SlotRunner(nn.Linear(4, 3).double(), cross_entropy, [experiment], **options)
        found.append(slots.updates(start, cohorts)[0])
    assert len(found[0]) == 6
    assert len(found[1]) == rows
    torch.testing.assert_close(found[1].sum(0), found[0].sum(0), rtol=1e-12, atol=1e-15)
    if rows == 4:  # lane i holds passes i, i + 4, ...
        passes = joined([3] * 6) if not options else [range(i, i + 1) for i in range(6)]
        sums = torch.stack([found[0][list(each)].sum(0) for each in passes])
        expected = torch.stack([sums[i::4].sum(0) for i in range(4)])
        torch.testing.assert_close(found[1], expected, rtol=1e-12, atol=1e-15)


def test_draws_of_a_joined_pass_are_divided_by_batch_sizes_of_their_own(
    make_plan: Any, make_records: Any
) -> None:
    plan = make_plan([6, 7], [[0, 1, 1, 0, 0, 1, 0, 1]], sampler="fixed", noise=[0.0, 0.0])
    plan.batch_sizes = np.array([2, 5])  # every joined pass has draws of both
    records = make_records(torch.randn(13, 4), [6, 7])
    options = {"plan": plan, "records": records, "streams": Streams.seeded(0)}
    single, together = (
        SlotRunner(nn.Linear(4, 3).double(), cross_entropy, [experiment]).updates(
            [torch.zeros(15, dtype=torch.float64)], [cohort_of(plan, 0)]
        )[0]
        for experiment in (Experiment(**options), Experiment(**options, merged_noise=True))
    )
    assert len(together) == 4
    torch.testing.assert_close(together.sum(0), single.sum(0), rtol=1e-12, atol=1e-15)


def test_a_bound_on_memory_is_picked_from_the_model(make_plan: Any, make_records: Any) -> None:
    slots, _ = runner(make_plan, make_records)
    assert slots.micro_batch == (160 << 20) // (4 * 6 * 3)
    assert runner(make_plan, make_records, micro_batch=5)[0].micro_batch == 5


@pytest.mark.parametrize("option", ["micro_batch", "slots_per_pass"])
def test_bounds_are_whole_numbers(make_plan: Any, make_records: Any, option: str) -> None:
    with pytest.raises(InputError, match=option):
        runner(make_plan, make_records, **{option: 0})


def test_an_error_in_a_worker_comes_out(make_plan: Any, make_records: Any) -> None:
    slots, plan = runner(make_plan, make_records, workers=2)
    plan.sampling_rates = np.array([0.5, 1.5])
    with pytest.raises(InputError, match="rate"):
        slots.updates([torch.zeros(15, dtype=torch.float64)], [cohort_of(plan, 0)])

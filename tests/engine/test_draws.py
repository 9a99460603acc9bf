# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpcohort.engine import BatchedEngine, Experiment, Streams
from dpcohort.engine._batched import PARTIAL_SUMS, Draw
from dpcohort.engine._experiment import cohort_of, cohort_rows
from dpcohort.engine._randomness import draw_names, first_words
from dpcohort.errors import InputError

from .conftest import seeded


def runner(make_plan: Any, make_records: Any, **options: Any) -> tuple[BatchedEngine, Any]:
    plan = make_plan([6, 7], [[0, 1, 1]])
    records = make_records(torch.randn(13, 4), [6, 7])
    experiment = seeded(plan, records, 0)
    model = nn.Linear(4, 3).double()
    return BatchedEngine(model, [experiment], **options), plan


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - targets).square()


@pytest.mark.parametrize("options", [{}, {"draws_per_pass": 1}, {"micro_batch": 2}])
def test_with_merged_noise_draws_add_to_a_few_partial_sums(
    make_plan: Any, make_records: Any, options: dict[str, Any]
) -> None:
    draws = PARTIAL_SUMS + 3
    plan = make_plan([6, 7], [[i % 2 for i in range(draws)]], noise=[0.0, 0.0])
    plan.batch_sizes = np.array([2, 5])  # each draw is divided by its own
    records = make_records(torch.randn(13, 4), [6, 7])
    cohorts, start = [cohort_of(plan, 0)], [torch.zeros(18, dtype=torch.float64)]
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1, bias=False)).double()
    single, together = (
        BatchedEngine(model, [seeded(plan, records, 0, merged_noise=on)], loss=squared, **options)
        .updates(start, cohorts)[0]
        .updates
        for on in (False, True)
    )
    assert (len(single), len(together)) == (draws, PARTIAL_SUMS)
    expected = torch.stack([single[i::PARTIAL_SUMS].sum(0) for i in range(PARTIAL_SUMS)])
    torch.testing.assert_close(together, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("option", ["micro_batch", "draws_per_pass"])
def test_bounds_are_whole_numbers(make_plan: Any, make_records: Any, option: str) -> None:
    with pytest.raises(InputError, match=option):
        runner(make_plan, make_records, **{option: 0})


def test_an_error_in_a_worker_comes_out(make_plan: Any, make_records: Any) -> None:
    draws, plan = runner(make_plan, make_records, workers=2)
    plan.sampling_rates = np.array([0.5, 1.5])
    with pytest.raises(InputError, match="rate"):
        draws.updates([torch.zeros(15, dtype=torch.float64)], [cohort_of(plan, 0)])


def test_with_merged_noise_only_the_last_step_has_none_of_its_own(
    make_plan: Any, make_records: Any
) -> None:
    parts: dict[str, Any] = {
        "plan": make_plan([4], [[0]], local_steps=3),
        "records": make_records(torch.zeros(4, 2), [4]),
    }
    plain = Experiment(**parts, streams=Streams.seeded(0))
    assert [plain.adds_noise_at(step) for step in range(3)] == [True] * 3
    merged = Experiment(**parts, streams=Streams.seeded(0), merged_noise=True)
    assert [merged.adds_noise_at(step) for step in range(3)] == [True, True, False]
    assert merged.step_size(0, 2) == 0.1
    with pytest.raises(InputError, match="for simulation"):
        Experiment(**parts, streams=Streams.from_entropy(), merged_noise=True)


def test_words_and_batches_of_a_cohort_are_those_of_its_draws(
    make_plan: Any, make_records: Any
) -> None:
    sizes = [9, 14, 11]
    plan = make_plan(sizes, [[2, 0, 2], [1, 1, 0]], sampler="fixed", batch_size=5)
    records = make_records(torch.randn(sum(sizes), 2), sizes)
    experiments = [seeded(plan, records, seed) for seed in (3, 4)]
    cohorts = [cohort_of(plan, 0), cohort_of(plan, 1)]
    streams = [experiment.streams for experiment in experiments]
    words = first_words(draw_names(streams, "noise", cohorts, 6))
    draws = [
        Draw(experiment, e, cohorts[e], i) for e, experiment in enumerate(experiments)
        for i in range(3)
    ]  # fmt: skip
    alone = [d.experiment.streams.words("noise", 2, **d.name, step=6) for d in draws]
    assert np.array_equal(words, np.stack(alone))
    together = [
        rows for e, experiment in enumerate(experiments)
        for rows in cohort_rows(experiment, cohorts[e], 6)
    ]  # fmt: skip
    assert all(np.array_equal(a, d.rows(6)) for a, d in zip(together, draws, strict=True))

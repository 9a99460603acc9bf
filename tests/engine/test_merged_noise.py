# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpcohort.aggregation import Mean, TrimmedMean
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    ConstantStep,
    Experiment,
    InverseTimeStep,
    Optimiser,
    ReferenceEngine,
    Streams,
)
from dpcohort.engine._experiment import merged_noise_, merged_std, refuse_unmergeable
from dpcohort.errors import InputError

from .conftest import final, seeded

SIZES = [20, 9, 15, 16]
COHORTS = [
    [0, 1, 0, 2, 3, 1],
    [2, 3, 3, 0, 0, 3],
    [1, 1, 1, 2, 0, 2],
]  # more draws than partial sums
NOISE = [0.7, 0.0, 1.9, 0.2]  # client 1 is public


def moved_apart(a: torch.Tensor, b: torch.Tensor, start: torch.Tensor) -> float:
    return float((a - b).norm() / (b - start).norm())


def setting(make_plan: Any, make_records: Any, **options: Any) -> tuple[Any, nn.Module, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        inputs = torch.randn(60, 4, dtype=torch.float64)
    plan = make_plan(
        SIZES, options.pop("cohorts", COHORTS), **{"noise": NOISE, "clip": 0.3, **options}
    )
    return plan, model, make_records(inputs, SIZES)


def test_equals_the_reference_in_64_bits(network: Any, make_plan: Any, make_records: Any) -> None:
    equal_in_64_bits(network, make_plan, make_records, "poisson", 1)


def equal_in_64_bits(
    network: Any, make_plan: Any, make_records: Any, sampler: str, local_steps: int
) -> None:
    plan = make_plan(
        SIZES, COHORTS[:2], sampler=sampler, local_steps=local_steps, clip=0.3, noise=NOISE
    )
    records = make_records(network.inputs, SIZES)
    options = {
        "streams": Streams.seeded(3),
        "optimiser": Optimiser(local_step=InverseTimeStep(2.0)),
        "merged_noise": True,
    }
    slow = ReferenceEngine(
        network.model,
        [Experiment(plan=plan, records=records, **options)],
        vectorised=network.path != "loop",
    )
    expected, start = final(slow), slow.initial_states()[0].parameters
    for choice in ({}, {"draws_per_pass": 4, "micro_batch": 10}):
        fast = BatchedEngine(
            network.model, [Experiment(plan=plan, records=records, **options)], workers=1, **choice
        )
        assert moved_apart(final(fast), expected, start) < 1e-9


@pytest.mark.parametrize("local_steps", [1, 3])
def test_it_is_the_training_with_the_last_noises_exchanged(
    make_plan: Any, make_records: Any, local_steps: int
) -> None:
    """Without noise both are the same; with it, they differ by exactly the noises of last steps."""
    plan, model, records = setting(
        make_plan, make_records, cohorts=[COHORTS[0]], local_steps=local_steps
    )
    streams, step_sizes = Streams.seeded(5), InverseTimeStep(2.0)
    optimiser, alpha = Optimiser(local_step=step_sizes), step_sizes.at(local_steps - 1, local_steps)
    options: dict[str, Any] = {"streams": streams, "optimiser": optimiser}
    separate = final(BatchedEngine(model, [Experiment(plan=plan, records=records, **options)]))
    merged = final(
        BatchedEngine(model, [Experiment(plan=plan, records=records, **options, merged_noise=True)])
    )
    stds = [NOISE[k] * 0.3 / 4 for k in COHORTS[0]]
    own = torch.zeros_like(merged)
    seen: dict[int, int] = {}
    for k, std in zip(COHORTS[0], stds, strict=True):
        draw = seen.get(k, 0)
        seen[k] = draw + 1
        name = {"round": 0, "client": k, "draw": draw, "step": local_steps - 1}
        own += alpha * std * streams.normal_(torch.empty_like(own), **name) / 6
    one = merged_noise_(torch.zeros_like(own), 1.0, streams, round=0)
    together = alpha * np.sqrt(sum(std**2 for std in stds)) / 6 * one
    torch.testing.assert_close(separate + own, merged + together, rtol=0, atol=1e-13)


def test_a_stack_may_mix_both(make_plan: Any, make_records: Any) -> None:
    plan, model, records = setting(make_plan, make_records, local_steps=2)
    streams = Streams.seeded(1)
    experiments = [
        Experiment(plan=plan, records=records, streams=streams, merged_noise=merged)
        for merged in (True, False, True)
    ]
    alone = []
    for experiment in experiments:
        engine = BatchedEngine(model, [experiment])
        (state,) = engine.initial_states()
        list(engine.rounds([state]))
        alone.append(state.parameters)
    assert torch.equal(alone[0], alone[2])
    assert not torch.equal(alone[0], alone[1])
    for draws_per_pass, tolerance in ((None, 0.0), (4, 1e-12), (18, 1e-12)):
        together = BatchedEngine(model, experiments, draws_per_pass=draws_per_pass, workers=2)
        states = together.initial_states()
        list(together.rounds(states))
        for state, expected in zip(states, alone, strict=True):
            assert float((state.parameters - expected).abs().max()) <= tolerance


def test_empty_batches_leave_the_noise(make_plan: Any, make_records: Any) -> None:
    plan, model, records = setting(make_plan, make_records, cohorts=[COHORTS[0]])
    plan.sampling_rates = np.zeros(4)
    stds = np.array([NOISE[k] * 0.3 / 4 for k in COHORTS[0]])
    noise = merged_noise_(torch.zeros(43, dtype=torch.float64), 1.0, Streams.seeded(8), round=0)
    for engine in (ReferenceEngine, BatchedEngine):
        built = engine(model, [seeded(plan, records, 8, merged_noise=True)])
        change = built.initial_states()[0].parameters - final(built)
        torch.testing.assert_close(change, merged_std(stds, 0.1) * noise, rtol=1e-9, atol=1e-15)


def test_huge_and_spoilt_records_stay_within_the_clip(network: Any, make_plan: Any) -> None:
    if not network.inputs.is_floating_point():
        pytest.skip("tokens are integers")
    for dtype in (torch.float32, torch.float64):
        stay_within_the_clip(network, make_plan, dtype)


def stay_within_the_clip(network: Any, make_plan: Any, dtype: torch.dtype) -> None:
    plan = make_plan([20], [[0]], sampler="fixed", batch_size=20, noise=[0.0], clip=0.4)
    inputs = network.inputs * (1e15 if dtype == torch.float32 else 1e200)
    inputs[:20][1::2] = float("nan")
    records = ClientRecords(
        inputs, np.zeros(60, dtype=np.int64), indices=np.arange(20), offsets=np.array([0, 20]),
        dtype=dtype,
    )  # fmt: skip
    engine = BatchedEngine(
        network.model,
        [
            seeded(
                plan,
                records,
                0,
                merged_noise=True,
                optimiser=Optimiser(local_step=ConstantStep(1.0)),
            )
        ],
    )
    state = engine.initial_states()[0]
    state.parameters.zero_()
    list(engine.rounds([state]))
    assert torch.isfinite(state.parameters).all()
    assert float(state.parameters.double().norm()) <= 0.4 * 10 / 20 * (1 + 1e-6)
    assert engine.raw_nonfinite_count >= 10


def test_the_std_of_independent_noises_together() -> None:
    assert merged_std(np.array([2.0, 0.0, 6.0]), 0.5) == pytest.approx(np.sqrt(1 + 9) / 3)


class _Looking(Mean):
    """A rule around the mean that could look at single updates."""


@pytest.mark.parametrize("kind", [ReferenceEngine, BatchedEngine])
def test_it_is_for_simulations_of_the_plain_mean(
    make_plan: Any, make_records: Any, kind: Any
) -> None:
    plan, model, records = setting(make_plan, make_records)
    with pytest.raises(InputError, match="for simulation"):
        kind(
            model,
            [
                Experiment(
                    plan=plan, records=records, streams=Streams.from_entropy(), merged_noise=True
                )
            ],
        )
    for rule in (TrimmedMean(), _Looking()):
        with pytest.raises(InputError, match=type(rule).__name__):
            kind(model, [seeded(plan, records, 0, aggregation=rule, merged_noise=True)])
    refuse_unmergeable(Streams.seeded(0), Mean())
    kind(
        model,
        [
            Experiment(
                plan=plan, records=records, streams=Streams.from_entropy(), aggregation=_Looking()
            )
        ],
    )

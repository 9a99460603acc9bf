# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    ConstantStep,
    Experiment,
    Optimiser,
    ReferenceEngine,
    Streams,
)
from dpcohort.engine._device_draws import (
    CapturedPass,
    DeviceDraws,
    PackedStep,
    UncapturableError,
    pack,
)
from dpcohort.engine._experiment import cohort_of

from .conftest import final, seeded

SIZES = [20, 9, 15, 16]
COHORTS = [[0, 1, 0], [2, 3, 3], [1, 2, 0], [3, 3, 3], [0, 2, 1], [0, 1, 0]]


def moved_apart(a: torch.Tensor, b: torch.Tensor, start: torch.Tensor) -> float:
    return float((a - b).norm() / (b - start).norm())


@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("draws_per_pass", [3, 2])
def test_prepared_passes_give_the_same_sums(
    make_plan: Any, make_records: Any, local_steps: int, draws_per_pass: int
) -> None:
    """Without noise, the accelerator's way equals the processor's; here both on a processor."""
    plan = make_plan(SIZES, COHORTS, noise=[0.0] * 4, local_steps=local_steps)
    records = make_records(torch.randn(60, 4, dtype=torch.float64), SIZES)
    experiments = [seeded(plan, records, seed) for seed in (1, 2)]
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    runner = BatchedEngine(model, experiments, draws_per_pass=draws_per_pass)
    cohorts = [cohort_of(plan, 0)] * 2
    parameters = [torch.randn(43, dtype=torch.float64) for _ in experiments]
    expected = torch.cat([each.updates for each in runner.updates(parameters, cohorts)])
    got = torch.empty(6, 43, dtype=torch.float64)
    device = DeviceDraws(runner.networks[0], records, micro_batch=7)
    assert not device.records_passes
    waited = []
    device.run(
        runner._prepare(cohorts), parameters, got, meanwhile=lambda: waited.append(True)
    )  # fmt: skip
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-14)
    assert waited == [True]


@pytest.mark.parametrize("local_steps", [1, 3])
def test_prepared_passes_leave_merged_noise_out(
    make_plan: Any, make_records: Any, local_steps: int
) -> None:
    """The last step has no noise; the earlier ones do, here none so that both ways agree."""
    noise = [0.7, 0.0, 1.9, 0.2] if local_steps == 1 else [0.0] * 4
    plan = make_plan(SIZES, COHORTS, noise=noise, local_steps=local_steps)
    records = make_records(torch.randn(60, 4, dtype=torch.float64), SIZES)
    options: dict[str, Any] = {"plan": plan, "records": records, "streams": Streams.seeded(1)}
    merged = Experiment(**options, merged_noise=True)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    runner = BatchedEngine(model, [merged])
    cohorts, parameters = [cohort_of(plan, 0)], [torch.randn(43, dtype=torch.float64)]
    sums = runner.updates(parameters, cohorts)[0].updates
    got = torch.empty(3, 43, dtype=torch.float64)
    device = DeviceDraws(runner.networks[0], records, micro_batch=7)
    device.run(runner._prepare(cohorts), parameters, got, meanwhile=lambda: None)
    torch.testing.assert_close(got.sum(0), sums.sum(0), rtol=1e-10, atol=1e-14)
    noisy = BatchedEngine(model, [Experiment(**options)])._prepare(cohorts)
    spreads = [step.spread.tolist() for step in noisy[0].steps]
    assert any(spread > 0 for spread in spreads[-1]) == (local_steps == 1)


@pytest.mark.parametrize("micro_batch", [1000, 50])
def test_a_cohort_whose_sum_alone_counts_is_one_batch(
    make_plan: Any, make_records: Any, micro_batch: int
) -> None:
    """Draws joined, each record with its draw's factor, on a processor as on an accelerator."""
    plan = make_plan(SIZES, COHORTS, noise=[1.0] * 4)
    plan.batch_sizes = np.array([4, 7, 5, 9])
    records = make_records(torch.randn(60, 4, dtype=torch.float64), SIZES)
    experiments = [seeded(plan, records, seed, merged_noise=True) for seed in (1, 2)]
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    runner = BatchedEngine(model, experiments, micro_batch=micro_batch)
    cohorts = [cohort_of(plan, 0), cohort_of(plan, 1)]
    parameters = [torch.randn(43, dtype=torch.float64) for _ in experiments]
    expected = [each.updates.sum(0) for each in runner.updates(parameters, cohorts)]
    got = torch.empty(2, 43, dtype=torch.float64)
    passes = list(runner._prepare_joined(cohorts))
    DeviceDraws(runner.networks[0], records, micro_batch=micro_batch).run(
        passes, parameters, got, meanwhile=lambda: None
    )
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_a_round_of_everybody_with_all_records_is_prepared_once(
    make_plan: Any, make_records: Any, sampler: str
) -> None:
    """Whoever is named first; another cohort, or records drawn anew, are prepared anew."""
    sizes = [9, 15, 6]
    plan = make_plan(sizes, [[0, 1, 2], [2, 0, 1], [1, 2, 1]], noise=[1.0] * 3, sampler=sampler)
    plan.batch_sizes = np.array(sizes)
    plan.sampling_rates = np.ones(3)
    records = make_records(torch.randn(30, 4, dtype=torch.float64), sizes)
    experiment = seeded(plan, records, 1, merged_noise=True)
    runner = BatchedEngine(nn.Linear(4, 3).double(), [experiment])
    everybody, again, others = ([cohort_of(plan, t)] for t in range(3))
    first = list(runner._prepare_joined(everybody))
    parameters = [torch.randn(15, dtype=torch.float64)]
    got = torch.empty(1, 15, dtype=torch.float64)
    for cohorts, is_known in [(again, True), (others, False), (everybody, False)]:
        passes = list(runner._prepare_joined(cohorts))
        assert (passes[0] is first[0]) == (is_known and sampler == "poisson")
        expected = runner.updates(parameters, cohorts)[0].updates.sum(0)
        DeviceDraws(runner.networks[0], records, micro_batch=100).run(
            passes, parameters, got, meanwhile=lambda: None
        )
        torch.testing.assert_close(got[0], expected, rtol=1e-10, atol=1e-14)


def test_records_that_are_not_finite_get_a_second_look(make_plan: Any, make_records: Any) -> None:
    inputs = torch.randn(60, 4, dtype=torch.float64)
    inputs[::3] = float("nan")
    plan = make_plan([60], [[0, 0]], noise=[0.0], sampler="fixed", batch_size=60)
    records = make_records(inputs, [60])
    experiment = seeded(plan, records, 1)
    runner = BatchedEngine(nn.Linear(4, 3).double(), [experiment])
    cohorts, parameters = [cohort_of(plan, 0)], [torch.zeros(15, dtype=torch.float64)]
    expected = torch.cat([each.updates for each in runner.updates(parameters, cohorts)])
    got = torch.empty(2, 15, dtype=torch.float64)
    device = DeviceDraws(runner.networks[0], records, micro_batch=1000)
    device.run(runner._prepare(cohorts), parameters, got, meanwhile=lambda: None)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-14)
    assert torch.isfinite(got).all()


@pytest.mark.parametrize(("local_steps", "sampler"), [(1, "poisson"), (3, "fixed")])
def test_a_gpu_equals_the_reference_in_64_bits(
    cuda: str, network: Any, make_plan: Any, make_records: Any, sampler: str, local_steps: int
) -> None:
    plan = make_plan(SIZES, COHORTS, sampler=sampler, local_steps=local_steps, clip=0.3)
    records = make_records(network.inputs, SIZES, device=cuda)
    options = {"streams": Streams.seeded(3), "optimiser": Optimiser(local_step=ConstantStep(0.5))}
    slow = ReferenceEngine(
        network.model,
        [Experiment(plan=plan, records=records, **options)],
        vectorised=network.path != "loop",
    )
    expected, start = final(slow), slow.initial_states()[0].parameters
    for draws_per_pass in (None, 2):
        fast = BatchedEngine(
            network.model,
            [Experiment(plan=plan, records=records, **options)],
            draws_per_pass=draws_per_pass,
        )
        assert fast.path.kind == network.path, fast.path.reason
        assert moved_apart(final(fast), expected, start) < 1e-9
        device = fast._device_draws
        assert device is not None
        assert device.records_passes == (network.path == "stacked")
        if device.records_passes:
            assert device._recordings


def test_a_gpu_merges_noise_like_the_reference(
    cuda: str, network: Any, make_plan: Any, make_records: Any
) -> None:
    records = make_records(network.inputs, SIZES, device=cuda)
    options = {"streams": Streams.seeded(3), "merged_noise": True}
    for local_steps in (1, 3):
        plan = make_plan(SIZES, COHORTS, local_steps=local_steps, clip=0.3)
        slow = ReferenceEngine(
            network.model,
            [Experiment(plan=plan, records=records, **options)],
            vectorised=network.path != "loop",
        )
        expected, start = final(slow), slow.initial_states()[0].parameters
        fast = BatchedEngine(network.model, [Experiment(plan=plan, records=records, **options)])
        assert moved_apart(final(fast), expected, start) < 1e-9


def test_a_gpu_stack_equals_each_alone(cuda: str, make_plan: Any, make_records: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 6, 3, stride=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(54, 3),
    ).double()  # fmt: skip
    plan = make_plan(SIZES, COHORTS, local_steps=2)
    records = make_records(torch.randn(60, 2, 8, 8, dtype=torch.float64), SIZES, device=cuda)
    experiments = [seeded(plan, records, seed) for seed in range(3)]
    alone = []
    for experiment in experiments:
        engine = BatchedEngine(model, [experiment])
        alone.append(final(engine))
    for draws_per_pass in (None, 4):
        engine = BatchedEngine(model, experiments, draws_per_pass=draws_per_pass)
        states = engine.initial_states()
        for _ in engine.rounds(states):
            pass
        for state, expected in zip(states, alone, strict=True):
            torch.testing.assert_close(state.parameters, expected, rtol=0, atol=1e-11)


def test_a_gpu_leaves_out_records_that_are_not_finite(
    cuda: str, make_plan: Any, make_records: Any
) -> None:
    spoilt = torch.randn(60, 4, dtype=torch.float64)
    spoilt[:20:2] = float("nan")
    records = ClientRecords(
        spoilt, np.zeros(60, dtype=np.int64), indices=np.arange(40), offsets=np.array([0, 20, 40]),
        dtype=torch.float64, device=cuda,
    )  # fmt: skip
    cohorts = [[1], [1], [1], [0], [0], [1]]  # recorded before the first spoilt record comes
    plan = make_plan([20, 20], cohorts, sampler="fixed", batch_size=20, noise=[0.5, 0.0])
    slow = ReferenceEngine(nn.Linear(4, 3).double(), [seeded(plan, records, 0)])
    fast = BatchedEngine(nn.Linear(4, 3).double(), [seeded(plan, records, 0)])
    start = slow.initial_states()[0]
    states = [engine.initial_states()[0] for engine in (slow, fast)]
    for engine, state in zip((slow, fast), states, strict=True):
        state.parameters.copy_(start.parameters)
        for _ in engine.rounds([state]):
            pass
    assert moved_apart(states[1].parameters, states[0].parameters, start.parameters) < 1e-9
    assert fast.raw_nonfinite_count == 20
    diverged = fast.initial_states()[0]
    diverged.parameters.fill_(float("nan"))
    assert len(list(fast.rounds([diverged]))) == 6


def test_a_model_that_cannot_be_recorded_is_trained_all_the_same(
    cuda: str, make_plan: Any, make_records: Any
) -> None:
    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.layer(inputs)
            return outputs * (2.0 if float(inputs.sum()) > 1e9 else 1.0)

    plan = make_plan(SIZES, COHORTS)
    records = make_records(torch.randn(60, 4, dtype=torch.float64), SIZES, device=cuda)
    model = Waits().double()
    slow = ReferenceEngine(model, [seeded(plan, records, 0)], vectorised=False)
    fast = BatchedEngine(model, [seeded(plan, records, 0)])
    assert moved_apart(final(fast), final(slow), slow.initial_states()[0].parameters) < 1e-9
    device = fast._device_draws
    assert device is not None
    assert not device.records_passes


def packed_of(rows: list[list[int]], names: list[list[int]], reals: list[float], **how: Any) -> Any:
    return pack(
        [np.array(own, dtype=np.int64) for own in rows],
        [np.array(name, dtype=np.uint64) for name in names],
        scale=reals,
        spread=[2 * real for real in reals],
        clip=[3 * real for real in reals],
        pinned=False,
        **how,
    )


def test_everything_comes_out_as_it_went_in() -> None:
    names = [[1, 2**64 - 1], [3, 4], [2**63, 6]]
    packed = packed_of([[4, 5, 9], [], [8]], names, [0.5, 1.5, -2.0], multiple=2)
    assert (packed.draws, packed.width, packed.is_full) == (3, 4, False)
    assert packed.rows.view(3, 4).tolist() == [[4, 5, 9, 0], [0] * 4, [8, 0, 0, 0]]
    assert packed.mask is not None
    assert packed.mask.sum(1).tolist() == [3, 0, 1]
    assert packed.noise_names.numpy().view(np.uint64).tolist() == names
    assert packed.scale.tolist() == [0.5, 1.5, -2.0]
    assert packed.spread.tolist() == [1.0, 3.0, -4.0]
    assert packed.clip.tolist() == [1.5, 4.5, -6.0]


def packed(rows: list[int]) -> PackedStep:
    name = np.array([1, 2], dtype=np.uint64)
    return pack(
        [np.array(rows)], [name], scale=[1.0], spread=[0.0], clip=[1.0], multiple=1, pinned=True
    )


def body(step: PackedStep, weights: Tensor, sums: Tensor) -> None:
    sums.add_(weights * step.rows.sum())


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


def test_a_device_draws_the_batches_of_the_host(
    make_plan: Any, make_records: Any, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: of two trainings with other partitions, several steps, several widths of keys."""
    plan = make_plan(SIZES, COHORTS, sampler="fixed", batch_size=7, local_steps=2)
    records = make_records(torch.randn(60, 4), SIZES, device=cuda)
    other = records.repartitioned(
        ClientRecords(
            torch.zeros(60, 1), torch.zeros(60), indices=np.arange(60)[::-1].copy(),
            offsets=records.offsets,
        )
    )  # fmt: skip
    model, rows = nn.Linear(4, 3), []
    gather = ClientRecords.gather

    def watched(self: ClientRecords, given: Any) -> Any:
        rows.append(torch.as_tensor(given).cpu())
        return gather(self, given)

    def trained() -> tuple[list[Tensor], list[Tensor]]:
        engine = BatchedEngine(
            model, [seeded(plan, held, seed) for seed, held in enumerate([records, other])]
        )
        assert engine._device_draws is not None
        engine._device_draws.records_passes = False  # so that every pass gathers
        rows.clear()
        states = engine.initial_states()
        for _ in engine.rounds(states):
            pass
        return [state.parameters for state in states], list(rows)

    monkeypatch.setattr(ClientRecords, "gather", watched)
    here, drawn_here = trained()
    monkeypatch.setattr("dpcohort.engine._batched.DRAWS_BATCHES", False)
    there, drawn_there = trained()
    assert len(drawn_here) == len(drawn_there) > 0
    assert all(torch.equal(*both) for both in zip(drawn_here, drawn_there, strict=True))
    assert all(torch.equal(*both) for both in zip(here, there, strict=True))


def test_an_engine_prepares_the_next_round_while_the_device_is_busy(
    make_plan: Any, make_records: Any
) -> None:
    """A whole training the accelerator's way, on a processor and without noise: the same model."""
    plan = make_plan(SIZES, COHORTS, noise=[0.0] * 4, batch_size=4)
    records = make_records(torch.randn(60, 4, dtype=torch.float64), SIZES)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    experiment = seeded(plan, records, 1)
    usual, fast = (BatchedEngine(model, [experiment], draws_per_pass=2) for _ in range(2))
    fast._device_draws = DeviceDraws(fast.networks[0], records, micro_batch=7)
    assert fast.parts_of(0) == 2  # three draws in passes of two
    wanted, found = final(usual), final(fast)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)

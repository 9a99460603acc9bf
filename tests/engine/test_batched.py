# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpcohort import plugin
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    ConstantStep,
    Experiment,
    Optimiser,
    ReferenceEngine,
    Streams,
    evaluator_on,
)
from dpcohort.engine._experiment import cohort_of
from dpcohort.engine.clipping import _network as network_module
from dpcohort.engine.clipping import cross_entropy
from dpcohort.errors import InputError
from dpcohort.tasks import Task

from .conftest import final, seeded

SIZES = [20, 9, 15, 16]
COHORTS = [[0, 1, 0], [2, 3, 3]]  # a client twice in each round: two draws


def moved_apart(a: torch.Tensor, b: torch.Tensor, start: torch.Tensor) -> float:
    """Difference relative to how far training moved, not to the size of the weights."""
    return float((a - b).norm() / (b - start).norm())


@pytest.mark.parametrize(("local_steps", "sampler"), [(1, "poisson")])
def test_equals_the_reference_in_64_bits(
    network: Any, make_plan: Any, make_records: Any, sampler: str, local_steps: int
) -> None:
    equal_in_64_bits(network, make_plan, make_records, sampler, local_steps)


@pytest.mark.parametrize("network", ["mlp", "conv2d", "bare", "recurrent"], indirect=True)
def test_several_steps_and_batches_of_a_fixed_size_equal_the_reference(
    network: Any, make_plan: Any, make_records: Any
) -> None:
    for sampler, local_steps in (("poisson", 3), ("fixed", 1)):
        equal_in_64_bits(network, make_plan, make_records, sampler, local_steps)


def equal_in_64_bits(
    network: Any, make_plan: Any, make_records: Any, sampler: str, local_steps: int
) -> None:
    plan = make_plan(SIZES, COHORTS, sampler=sampler, local_steps=local_steps, clip=0.3)
    records = make_records(network.inputs, SIZES)
    options = {"streams": Streams.seeded(3), "optimiser": Optimiser(local_step=ConstantStep(0.5))}
    slow = ReferenceEngine(
        network.model,
        [Experiment(plan=plan, records=records, **options)],
        vectorised=network.path != "loop",
    )
    expected, start = final(slow), slow.initial_states()[0].parameters
    for draws_per_pass in (1, 2, 3):
        fast = BatchedEngine(
            network.model,
            [Experiment(plan=plan, records=records, **options)],
            draws_per_pass=draws_per_pass,
            workers=1,
        )
        assert fast.path.kind == network.path, fast.path.reason
        assert moved_apart(final(fast), expected, start) < 1e-9


def test_micro_batches_change_nothing_but_rounding(
    network: Any, make_plan: Any, make_records: Any
) -> None:
    plan = make_plan(SIZES, COHORTS, local_steps=2, clip=0.3)
    records = make_records(network.inputs, SIZES)
    whole = BatchedEngine(network.model, [seeded(plan, records, 3)], workers=1)
    start, expected = whole.initial_states()[0].parameters, final(whole)
    for size in (1, 7):
        parts = BatchedEngine(
            network.model, [seeded(plan, records, 3)], workers=1, micro_batch=size
        )
        assert moved_apart(final(parts), expected, start) < 1e-12


def small_setting(make_plan: Any, make_records: Any, **options: Any) -> tuple[Any, nn.Module, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        inputs = torch.randn(60, 4, dtype=torch.float64)
    plan = make_plan(SIZES, options.pop("cohorts", COHORTS), **options)
    return plan, model, make_records(inputs, SIZES)


def test_workers_change_no_bit(make_plan: Any, make_records: Any) -> None:
    plan, model, records = small_setting(make_plan, make_records, local_steps=2)
    one = final(BatchedEngine(model, [seeded(plan, records, 1)], workers=1))
    three = final(BatchedEngine(model, [seeded(plan, records, 1)], workers=3))
    assert torch.equal(one, three)


def test_parts_of_a_batch_are_the_batch(make_plan: Any, make_records: Any) -> None:
    for sampler in ("fixed", "poisson"):
        plan, model, records = small_setting(
            make_plan, make_records, sampler=sampler, batch_size=7, local_steps=1
        )
        one = seeded(plan, records, 1)
        slow = ReferenceEngine(model, [one])
        expected, start = final(slow), slow.initial_states()[0].parameters
        for workers, size in ((1, 3), (3, 2)):
            fast = BatchedEngine(model, [one], micro_batch=size, workers=workers)
            assert moved_apart(final(fast), expected, start) < 1e-12


def images(make_plan: Any, make_records: Any) -> tuple[Any, nn.Module, Any]:
    """Six draws of 20 records a round."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 2), nn.Tanh(),
            nn.Flatten(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3),
        )  # fmt: skip
        inputs = torch.randn(100, 1, 8, 8)
    plan = make_plan([40, 30, 30], [[0, 1, 0, 2, 2, 1]] * 3, sampler="fixed", batch_size=20)
    return plan, model, make_records(inputs, [40, 30, 30], dtype=torch.float32)


def test_any_number_of_cores_gives_the_same_bits(
    make_plan: Any, make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, model, records = images(make_plan, make_records)

    def trained(cores: int) -> tuple[list[torch.Tensor], set[type]]:
        """With noise of its own for each draw, and with merged noise, side by side."""
        options = {"plan": plan, "records": records, "streams": Streams.seeded(1)}
        experiments = [Experiment(**options, merged_noise=merged) for merged in (False, True)]
        engine = BatchedEngine(model, experiments, micro_batch=10, workers=cores)
        states = engine.initial_states()
        list(engine.rounds(states))
        kinds = {type(found) for found in engine.networks[0].passes.values()}
        assert list(engine.networks[0].steps) == ([10] if kinds == {tuple} else [])
        return [state.parameters for state in states], kinds

    monkeypatch.setattr(network_module, "_OFTEN", 1)
    on_two, passes = trained(2)
    assert passes == {tuple}
    for cores in (1, 16):
        assert all(map(torch.equal, trained(cores)[0], on_two))
    monkeypatch.setattr(network_module, "_OFTEN", 10**9)
    plain, passes = trained(2)
    assert passes == {int}
    assert all(map(torch.equal, plain, on_two))


@plugin("loss")
def own_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets)


def test_code_of_somebodys_own_is_not_recorded(
    make_plan: Any, make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may do something else with the next batch."""

    class Own(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    monkeypatch.setattr(network_module, "_OFTEN", 0)
    plan, model, records = images(make_plan, make_records)
    hooked = nn.Sequential(model)
    hooked.register_forward_hook(lambda module, inputs, outputs: outputs)
    one = seeded(plan, records, 1)
    ours = Task(outputs=3).loss_on()
    theirs = Task(outputs=3, loss=f"{__name__}:own_loss").loss_on()
    known = BatchedEngine(model, [one], loss=ours, workers=1)
    final(known)
    assert {type(found) for found in known.networks[0].passes.values()} == {tuple}
    for unknown, loss in ((Own(model), ours), (hooked, ours), (model, theirs)):
        engine = BatchedEngine(unknown, [one], loss=loss)
        final(engine)
        assert engine.path.kind == "stacked"
        assert engine.networks[0].passes == {}


def test_a_record_that_is_not_finite_is_left_out_of_a_recorded_pass(
    make_plan: Any, make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "_OFTEN", 0)
    plan, model, records = images(make_plan, make_records)
    one = seeded(plan, records, 1)
    engine = BatchedEngine(model, [one], workers=1, micro_batch=10)
    start = engine.initial_states()[0].parameters
    final(engine)
    assert {type(found) for found in engine.networks[0].passes.values()} == {tuple}
    records._inputs[3] = float("nan")
    changed = engine.updates([start], [cohort_of(plan, 0)])[0].updates
    assert bool(torch.isfinite(changed).all())
    assert engine.raw_nonfinite_count > 0


def test_what_is_prepared_for_a_round_serves_no_other(
    make_plan: Any, make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "_OFTEN", 0)
    plan, model, records = images(make_plan, make_records)
    other = make_plan([40, 30, 30], [[2, 1, 1, 0, 2, 0]] * 3, sampler="fixed", batch_size=20)
    one = seeded(plan, records, 1)
    engine, fresh = (BatchedEngine(model, [one], workers=4) for _ in range(2))
    start = engine.initial_states()[0].parameters
    for t in (0, 0, 1):  # counted, recorded, and with what was prepared
        engine.updates([start], [cohort_of(plan, t)])
    for cohort in (cohort_of(other, 2), cohort_of(plan, 2), cohort_of(plan, 2)):
        found = engine.updates([start], [cohort])[0].updates.clone()
        assert torch.equal(found, fresh.updates([start], [cohort])[0].updates)


def test_a_round_that_cannot_be_prepared_says_so_when_it_comes(
    make_plan: Any, make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "_OFTEN", 0)
    _, model, records = images(make_plan, make_records)
    plan = make_plan([40, 30, 30], [[0] * 4] * 3 + [[1] * 4], sampler="fixed", batch_size=35)
    one = seeded(plan, records, 1)
    rounds = BatchedEngine(model, [one], workers=4).rounds(
        BatchedEngine(model, [one]).initial_states()
    )
    assert [next(rounds)[0].round for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match="batch_size"):
        next(rounds)


def test_steps_of_records_that_somebodys_code_changes_are_not_recorded(
    make_plan: Any, make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "_OFTEN", 0)
    plan, model, records = images(make_plan, make_records)
    changed = copy.copy(records)
    changed.transform = torch.neg
    one = seeded(plan, changed, 1)
    engine = BatchedEngine(model, [one], workers=2)
    found = final(engine)
    assert {type(each) for each in engine.networks[0].passes.values()} == {tuple}
    assert engine.networks[0].steps == {}
    records._inputs.neg_()
    one = seeded(plan, records, 1)
    assert torch.equal(found, final(BatchedEngine(model, [one], workers=2)))


def test_stacked_experiments_equal_separate_runs(make_plan: Any, make_records: Any) -> None:
    plan, model, records = small_setting(make_plan, make_records, local_steps=2)
    other = make_plan(
        SIZES, [[3, 1, 2], [1, 1, 0]], local_steps=2, clip=2.0, sampler="fixed", batch_size=3
    )
    shuffled = records.repartitioned(
        type("P", (), {"indices": records.indices[::-1].copy(), "offsets": records.offsets})
    )
    experiments = [
        seeded(plan, records, 1),
        seeded(plan, records, 2),
        seeded(
            other,
            shuffled,
            2,
            optimiser=Optimiser(local_step=ConstantStep(0.3), average_decay=0.5),
            initial=torch.zeros(43, dtype=torch.float64),
        ),
    ]
    alone = []
    for experiment in experiments:
        engine = BatchedEngine(model, [experiment])
        (state,) = engine.initial_states()
        for _ in engine.rounds([state]):
            pass
        alone.append(state)
    for draws_per_pass, tolerance in ((None, 0.0), (9, 1e-12), (4, 1e-12)):
        engine = BatchedEngine(model, experiments, draws_per_pass=draws_per_pass)
        states = engine.initial_states()
        for records_of_round in engine.rounds(states):
            assert len(records_of_round) == 3
        for state, expected in zip(states, alone, strict=True):
            gap = (state.parameters - expected.parameters).abs().max()
            assert float(gap) <= tolerance


def test_an_empty_batch_is_pure_noise(make_plan: Any, make_records: Any) -> None:
    plan, model, records = small_setting(make_plan, make_records, cohorts=[[0, 1]])
    plan.sampling_rates = np.zeros(4)
    noise = torch.stack(
        [
            Streams.seeded(8).normal_(
                torch.empty(43, dtype=torch.float64), round=0, client=k, draw=0, step=0
            )
            for k in (0, 1)
        ]
    )
    expected = 0.1 * 0.7 * 0.5 / 4 * noise.mean(0)
    for engine in (ReferenceEngine, BatchedEngine):
        built = engine(model, [seeded(plan, records, 8)])
        change = built.initial_states()[0].parameters - final(built)
        torch.testing.assert_close(change, expected, rtol=1e-9, atol=1e-15)


def test_public_clients_get_no_noise(make_plan: Any, make_records: Any) -> None:
    plan, model, records = small_setting(
        make_plan, make_records, sampler="fixed", noise=[0.0] * 4, batch_size=9, cohorts=[[1, 1]]
    )
    # Client 1 has 9 records and uses all: without noise, the seed cannot matter.
    one = final(BatchedEngine(model, [seeded(plan, records, 1)]))
    two = final(BatchedEngine(model, [seeded(plan, records, 2)]))
    assert torch.equal(one, two)
    assert not torch.equal(
        one, BatchedEngine(model, [seeded(plan, records, 2)]).initial_states()[0].parameters
    )


def test_records_that_are_not_finite_contribute_nothing(network: Any, make_plan: Any) -> None:
    if not network.inputs.is_floating_point():
        pytest.skip("tokens are integers")
    plan = make_plan([20], [[0]], sampler="fixed", batch_size=20, noise=[0.0], clip=0.4)
    spoilt = network.inputs.clone()
    spoilt[:20][::4] *= float("nan")
    spoilt[:20][2::4] *= float("inf")
    records = ClientRecords(
        spoilt, np.zeros(60, dtype=np.int64), indices=np.arange(20), offsets=np.array([0, 20]),
        dtype=torch.float64,
    )  # fmt: skip
    good = ClientRecords(
        spoilt, np.zeros(60, dtype=np.int64), indices=np.arange(1, 20, 2),
        offsets=np.array([0, 10]), dtype=torch.float64,
    )  # fmt: skip
    only_good = make_plan([10], [[0]], sampler="fixed", batch_size=10, noise=[0.0], clip=0.4)
    engine = BatchedEngine(network.model, [seeded(plan, records, 0)])
    start = engine.initial_states()[0].parameters
    change = final(engine) - start
    expected = final(BatchedEngine(network.model, [seeded(only_good, good, 0)]))
    torch.testing.assert_close(change, (expected - start) / 2, rtol=1e-9, atol=1e-14)
    assert engine.raw_nonfinite_count == 10
    slow = ReferenceEngine(
        network.model, [seeded(plan, records, 0)], vectorised=network.path != "loop"
    )
    torch.testing.assert_close(final(slow) - start, change, rtol=1e-9, atol=1e-14)


def test_huge_records_stay_within_the_clip(network: Any, make_plan: Any, make_records: Any) -> None:
    if not network.inputs.is_floating_point():
        pytest.skip("tokens are integers")
    plan = make_plan([20], [[0]], sampler="fixed", batch_size=20, noise=[0.0], clip=0.4)
    records = make_records(network.inputs * 1e200, [20])
    engine = BatchedEngine(network.model, [seeded(plan, records, 0)])
    change = final(engine) - engine.initial_states()[0].parameters
    assert float(change.norm()) <= 0.1 * 0.4 * (1 + 1e-6)


def test_diverged_weights_give_noise_and_no_crash(make_plan: Any, make_records: Any) -> None:
    plan, model, records = small_setting(make_plan, make_records)
    engine = BatchedEngine(model, [seeded(plan, records, 1)])
    state = engine.initial_states()[0]
    state.parameters.fill_(float("nan"))
    assert len(list(engine.rounds([state]))) == 2


def test_records_hold_only_public_things(make_plan: Any, make_records: Any) -> None:
    plan, model, records = small_setting(make_plan, make_records)
    evaluator = evaluator_on(model, torch.randn(30, 4), torch.zeros(30, dtype=torch.int64))
    engine = BatchedEngine(
        model, [seeded(plan, records, 1, optimiser=Optimiser(average_decay=0.9))]
    )
    states = engine.initial_states()
    (first,), (second,) = engine.rounds(states, evaluator=evaluator, evaluate_every=2)
    assert first.clients == (0, 1, 0)
    assert first.noise_stds == pytest.approx([0.7 * 0.5 / 4] * 3)
    assert first.test is None
    assert second.test is not None
    assert second.test_average is not None
    public = {"round", "clients", "noise_stds", "seconds", "test", "test_average", "lost"}
    assert set(vars(first)) == public


def test_stacks_that_do_not_fit_are_refused(make_plan: Any, make_records: Any) -> None:
    plan, model, records = small_setting(make_plan, make_records)
    longer = make_plan(SIZES, [*COHORTS, [0, 1, 2]])
    streams = Streams.seeded(0)
    one = Experiment(plan=plan, records=records, streams=streams)
    with pytest.raises(InputError, match="as many rounds"):
        BatchedEngine(model, [one, Experiment(plan=longer, records=records, streams=streams)])
    elsewhere = small_setting(make_plan, make_records)[2]
    with pytest.raises(InputError, match="same stored rows"):
        BatchedEngine(model, [one, Experiment(plan=plan, records=elsewhere, streams=streams)])
    with pytest.raises(InputError, match="at least one"):
        BatchedEngine(model, [])
    short = Experiment(plan=plan, records=records, streams=streams, initial=torch.zeros(3))
    with pytest.raises(InputError, match="initial"):
        BatchedEngine(model, [short]).initial_states()
    engine = BatchedEngine(model, [one])
    with pytest.raises(InputError, match="states"):
        next(engine.rounds([]))


def test_a_client_without_planned_noise_is_refused(make_plan: Any, make_records: Any) -> None:
    plan, model, records = small_setting(make_plan, make_records, noise=[1.0, float("nan"), 1, 1])
    engine = BatchedEngine(model, [seeded(plan, records, 0)])
    with pytest.raises(InputError, match=r"noise_multipliers\[1\]"):
        next(engine.rounds(engine.initial_states()))

# SPDX-License-Identifier: Apache-2.0
"""Training with private streams: what a record can do at most, measured on both engines."""

from __future__ import annotations

import math
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
    Lattice,
    Optimiser,
    ReferenceEngine,
    Streams,
)
from dpcohort.engine._experiment import cohort_of
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._lattice import release
from dpcohort.engine.clipping import _network as network_module
from dpcohort.engine.clipping import cross_entropy
from dpcohort.engine.clipping._network import RecordedGradients
from dpcohort.errors import InputError

from .conftest import final

ENGINES = {"reference": ReferenceEngine, "batched": BatchedEngine}
STEP = Optimiser(local_step=ConstantStep(1.0))


def zeros(size: int) -> bytes:
    """No entropy at all: the noise of a name is then always the same, and every record is drawn."""
    return bytes(size)


class Outputs(nn.Module):
    """A linear model whose loss is its output: a record's gradient is its input."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dimension, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


def output_or_nan(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss without a finite gradient where the target is 1, whatever the input is."""
    return outputs[:, 0] * torch.where(targets == 1, float("nan"), 1.0)


def update(engine: str, make_plan: Any, inputs: Any, **options: Any) -> Tensor:
    """Sum of clipped gradients with its noise, of one round in which every record is used."""
    return updates(engine, make_plan, [inputs], **options)[0]


def updates(
    engine: str, make_plan: Any, many: Any, *, loss: Any = output_or_nan, model: Any = None,
    targets: Any = None, device: str = "cpu", streams: Streams | None = None, clip: float = 0.5,
    noise: float = 0.7, dtype: torch.dtype = torch.float64, weights: float | None = None,
) -> list[Tensor]:  # fmt: skip
    """The same for each of these inputs, by one engine: making one takes longer than a round."""
    first, *_ = every = [np.array(inputs) for inputs in many]
    count, width = first.shape
    plan = make_plan([count], [[0]], batch_size=count, clip=clip, noise=[noise])
    records = ClientRecords(
        first.copy(),
        np.zeros(count, np.int64) if targets is None else np.asarray(targets),
        indices=np.arange(count),
        offsets=np.array([0, count]),
        dtype=dtype,
        device=device,
    )
    if model is None:
        model = Outputs(width)
        nn.init.zeros_(model.layer.weight)
    one = Experiment(
        plan=plan, records=records, optimiser=STEP, streams=streams or Streams(None, zeros)
    )
    trained = ENGINES[engine](model, [one], loss=loss)
    found = []
    for rows in every:
        records.stored[0].copy_(torch.as_tensor(rows))
        (state,) = trained.initial_states()
        if weights is not None:
            state.parameters.mul_(weights)
        start = state.parameters.clone()
        for _ in trained.rounds([state]):
            pass
        found.append((start - state.parameters).double().cpu() * count)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_a_private_step_is_a_point_of_the_lattice(engine: str, make_plan: Any, device: str) -> None:
    found = update(engine, make_plan, [[0.3, 0.0, 0.1]] * 4, device=device)
    integers = found / Lattice(0.7, 0.5).unit
    assert float((integers - integers.round()).abs().max()) < 1e-3
    assert float(found.norm()) > 0


def test_both_engines_release_the_same(make_plan: Any, make_records: Any, network: Any) -> None:
    """With the same keys: same integers, but for the last digit of a gradient."""
    plan = make_plan([6, 5], [[0, 1, 0], [1, 1, 0]], batch_size=5, local_steps=2, clip=0.3)
    plan.sampling_rates = np.ones(2)
    plan.batch_sizes = np.array([6, 5])
    records = make_records(network.inputs, [6, 5])
    results = []
    for engine in ENGINES.values():
        trained = engine(
            network.model,
            [Experiment(plan=plan, records=records, streams=Streams(None, zeros), optimiser=STEP)],
        )
        results.append(final(trained))
    start = trained.initial_states()[0].parameters
    gap = (results[0] - results[1]).norm() / (results[0] - start).norm()
    assert float(gap) < 1e-4
    assert float((results[0] - start).norm()) > 0


EXTREMES = [0.0, 1e-320, -1e-45, 1e-30, 1.0, -1e19, 2e38, 1e150, -1e300, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("engine", ENGINES)
def test_no_record_moves_a_private_sum_by_more_than_the_clip(
    engine: str, make_plan: Any, device: str
) -> None:
    """The same noise, one record exchanged for the null record: measured, not assumed."""
    others = [[0.2, -0.1], [3.0, 4.0], [1e30, 0.0], [math.nan, 1.0]]
    pairs = [(x, y) for i, x in enumerate(EXTREMES) for y in (0.0, EXTREMES[i - 5])]
    many = [[[x, y], *others] for x, y in [(0.0, 0.0), *pairs]]
    null, *changed = updates(engine, make_plan, many, device=device)
    for (x, y), with_it in zip(pairs, changed, strict=True):
        assert float((with_it - null).norm()) <= 0.5 * (1 + 1e-9), (x, y)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("private", [True, False], ids=["private", "seeded"])
def test_a_record_that_spoils_its_own_pass_spoils_no_other(
    engine: str, private: bool, make_plan: Any, device: str
) -> None:
    """Its gradient is no number whatever its input is; once, the whole batch then counted for 0."""
    inputs = [[0.3, 0.0], [0.3, 0.0], [0.0, 0.3]]
    how = {"device": device, "streams": None if private else Streams.seeded(1)}
    spoilt = update(engine, make_plan, inputs, targets=[0, 0, 1], **how)
    zeroed = update(engine, make_plan, [*inputs[:2], [0.0, 0.0]], **how)
    assert torch.allclose(spoilt, zeroed, rtol=0, atol=1e-6)
    whole = update(engine, make_plan, inputs, **how)
    assert 0.29 < float((whole - spoilt).norm()) <= 0.5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("private", [True, False], ids=["private", "seeded"])
def test_norms_do_not_vanish_in_float32(
    engine: str, private: bool, make_plan: Any, device: str
) -> None:
    """Gradients of 1e-23 by the outputs, an input of 1e18: their product is 63 clips long."""

    def tiny(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum(1) * 1e-23

    model = nn.Linear(2, 40, bias=False)
    nn.init.zeros_(model.weight)

    streams = None if private else Streams.seeded(1)
    how = {"loss": tiny, "clip": 1e-6, "noise": 1e-3, "device": device, "dtype": torch.float32}
    how["model"] = model
    found = update(engine, make_plan, [[1e18, 0.0]], streams=streams, **how)
    nothing = update(engine, make_plan, [[0.0, 0.0]], streams=streams, **how)
    assert float((found - nothing).norm()) == pytest.approx(1e-6, rel=1e-3, abs=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_squares_below_a_tiny_clip_do_not_vanish(engine: str, make_plan: Any, device: str) -> None:
    how = {"clip": 1e-25, "noise": 1e-3, "device": device, "dtype": torch.float32}
    for streams in (None, Streams.seeded(1)):
        found = update(engine, make_plan, [[1e-24, 0.0]], streams=streams, **how)
        nothing = update(engine, make_plan, [[0.0, 0.0]], streams=streams, **how)
        assert float((found - nothing).norm()) == pytest.approx(1e-25, rel=1e-3, abs=0)


@pytest.mark.parametrize("scale", [1e38, 1e-38, math.inf, math.nan])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_weights_let_a_record_count_for_more(
    engine: str, scale: float, make_plan: Any, device: str, monkeypatch: Any
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    inputs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    how = {
        "loss": loss, "model": model, "device": device, "dtype": torch.float32, "weights": scale,
    }  # fmt: skip
    lattice, seen = Lattice(0.7, 0.5), []

    def spied(totals: Tensor, *terms: Any, **kept: Any) -> Tensor:
        seen.append(totals[0].cpu())
        return release(totals, *terms, **kept)

    monkeypatch.setattr("dpcohort.engine._lattice.release", spied)
    monkeypatch.setattr("dpcohort.engine._batched.release", spied)
    update(engine, make_plan, inputs, **how)
    update(engine, make_plan, np.concatenate([inputs[:1] * 1e30, inputs[1:]]), **how)
    update(engine, make_plan, np.concatenate([inputs[:1] * 0, inputs[1:]]), **how)
    assert len(seen) == 3
    for one in seen[:2]:
        for other in seen[1:]:
            assert float((one - other).double().norm()) <= 2 * lattice.bound


@pytest.mark.parametrize("network", ["mlp", "conv2d", "recurrent"], indirect=True)
def test_private_training_uses_no_generator_of_torch(
    make_plan: Any, make_records: Any, network: Any, monkeypatch: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("noise from a generator made for simulation")

    plan, records = make_plan([6, 5], [[0, 1]]), make_records(network.inputs, [6, 5])
    for engine in ENGINES.values():
        trained = engine(
            network.model, [Experiment(plan=plan, records=records, streams=Streams.from_entropy())]
        )
        with monkeypatch.context() as patch:
            for name in ("normal_", "uniform_", "random_"):
                patch.setattr(torch.Tensor, name, refuse)
            patch.setattr(torch, "randn", refuse)
            for _ in trained.rounds(trained.initial_states()):
                pass


def test_workers_change_no_bit_of_a_private_sum(make_plan: Any, make_records: Any) -> None:
    plan = make_plan([9, 7, 8], [[0, 1, 2, 0]], local_steps=2)
    records = make_records(torch.randn(24, 5), [9, 7, 8])
    found = []
    for workers in (1, 3):
        trained = BatchedEngine(
            Outputs(5),
            [Experiment(plan=plan, records=records, streams=Streams(None, zeros))],
            loss=lambda o, t: o[:, 0],
            workers=workers,
        )
        state = trained.initial_states()[0]
        state.parameters.zero_()
        for _ in trained.rounds([state]):
            pass
        found.append(state.parameters)
    assert torch.equal(found[0], found[1])


def small_images(make_records: Any) -> tuple[nn.Module, ClientRecords]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5),
            nn.Tanh(), nn.Linear(5, 3),
        )  # fmt: skip
        return model, make_records(torch.randn(90, 1, 8, 8), [50, 40], dtype=torch.float32)


def test_recorded_passes_change_no_bit_of_a_private_sum(
    make_plan: Any, make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan([50, 40], [[0, 1, 0]] * 3, batch_size=30)
    model, records = small_images(make_records)
    found = []
    for often, workers in ((10**9, 1), (0, 1), (0, 3)):
        monkeypatch.setattr(network_module, "_OFTEN", often)
        streams = Streams(None, zeros)
        one = Experiment(plan=plan, records=records, streams=streams, optimiser=STEP)
        trained = BatchedEngine(model, [one], workers=workers)
        found.append(final(trained))
        passes = trained.isolated._network.own_passes.values()
        assert {type(one) for one in passes} == {int if often else RecordedGradients}
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_recorded_pass_that_treats_places_differently_is_not_used(
    make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, records = small_images(make_records)
    inputs, targets = records.gather(np.arange(3))
    isolated = IsolatedModel(model, cross_entropy, inputs, targets)
    monkeypatch.setattr(network_module, "_OFTEN", 0)
    real = RecordedGradients.parts

    def by_place(self: RecordedGradients, *given: Tensor) -> Any:
        first, *others = real(self, *given)
        return [(first[0] * torch.linspace(1, 1.01, len(first[0]))[:, None], *first[1:]), *others]

    monkeypatch.setattr(RecordedGradients, "parts", by_place)
    isolated.record_frequent_passes(isolated.layout.flatten(model), workers=16)
    assert set(isolated._network.own_passes.values()) == {None}


def test_private_and_seeded_do_not_stand_side_by_side(make_plan: Any, make_records: Any) -> None:
    plan, records = make_plan([6], [[0]]), make_records(torch.randn(6, 5), [6])
    streams = (Streams.seeded(0), Streams.from_entropy())
    stack = [Experiment(plan=plan, records=records, streams=one) for one in streams]
    with pytest.raises(InputError, match="all private"):
        BatchedEngine(Outputs(5), stack)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_public_client_of_a_private_run_adds_no_noise(
    make_plan: Any, make_records: Any, engine: Any
) -> None:
    plan = make_plan([6, 5], [[0, 1]], batch_size=5, noise=[0.0, 1.5])
    plan.sampling_rates[:] = 1.0  # whatever the rng say
    with torch.random.fork_rng():
        torch.manual_seed(3)
        records = make_records(torch.randn(11, 4), [6, 5], dtype=torch.float32)
        model = nn.Linear(4, 3)
    found = []
    for streams in (Streams.from_entropy(), Streams.from_entropy(), Streams.seeded(1)):
        made = engine(model, [Experiment(plan=plan, records=records, streams=streams)])
        start = made.initial_states()[0].parameters
        (came,) = made.updates([start], [cohort_of(plan, 0)])
        found.append(came.updates.clone())
    first, second, seeded = found
    assert torch.equal(first[0], second[0])
    assert torch.allclose(first[0], seeded[0], atol=1e-6)
    assert not torch.equal(first[1], second[1])

# SPDX-License-Identifier: Apache-2.0
"""Distributed noise: weighted sums of a cohort that get the noise of all its shares."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort.aggregation import TrimmedMean
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    ConstantStep,
    Experiment,
    InverseTimeStep,
    Lattice,
    Optimiser,
    ReferenceEngine,
    Streams,
)
from dpcohort.engine._experiment import cohort_of, member_lattices, merged_noise_
from dpcohort.engine._lattice import exact_coordinate, release
from dpcohort.errors import InputError

from .conftest import seeded

ENGINES = {"reference": ReferenceEngine, "batched": BatchedEngine}
SIZES = [20, 9, 15, 16, 12]
COHORTS = [[0, 1, 3, 2], [2, 4, 0, 3], [1, 4, 2, 0]]
WEIGHTS = [0.4, 1.0, 0.7, 2.1, 1.3]
STEP = Optimiser(local_step=ConstantStep(1.0))


def zeros(size: int) -> bytes:
    """No entropy at all: the noise of a name is then always the same, and every record is drawn."""
    return bytes(size)


def final(engine: Any) -> list[Tensor]:
    states = engine.initial_states()
    for _ in engine.rounds(states):
        pass
    return [state.parameters for state in states]


def apart(a: Tensor, b: Tensor, start: Tensor) -> float:
    return float((a.cpu() - b.cpu()).norm() / (b.cpu() - start.cpu()).norm())


def setting(make_plan: Any, make_records: Any, **options: Any) -> tuple[Any, nn.Module, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        inputs = torch.randn(72, 4, dtype=torch.float64)
    records = make_records(inputs, SIZES, device=options.pop("device", "cpu"))
    plan = make_plan(SIZES, COHORTS, **{"weights": WEIGHTS, "clip": 0.3, "honest": 3} | options)
    return plan, model, records


# --- simulation -------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
@pytest.mark.parametrize("batch", [4, 9])
def test_both_engines_give_one_result(
    make_plan: Any, make_records: Any, device: str, sampler: str, batch: int
) -> None:
    plan, model, records = setting(
        make_plan, make_records, device=device, sampler=sampler, batch_size=batch
    )
    optimiser = Optimiser(local_step=InverseTimeStep(2.0), server_momentum=0.4)
    one = seeded(plan, records, 3, optimiser=optimiser)
    slow = ReferenceEngine(model, [one])
    start, expected = slow.initial_states()[0].parameters, final(slow)[0]
    for options in ({}, {"draws_per_pass": 3, "micro_batch": 10}):
        assert apart(final(BatchedEngine(model, [one], **options))[0], expected, start) < 1e-9


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("share", [0.4, [0.1, 0.5, 0.2, 0.9, 0.3]], ids=["equal", "own"])
def test_a_round_is_the_weighted_sum_and_one_noise_of_all_shares(
    make_plan: Any, make_records: Any, kind: str, share: Any, device: str
) -> None:
    """With every record used, against the same training with hardly any noise."""
    share = np.asarray(share)
    plan, model, records = setting(
        make_plan, make_records, device=device, sampler="fixed", batch_size=9, share=share, honest=1
    )
    quiet = make_plan(
        SIZES, COHORTS, weights=WEIGHTS, clip=0.3, sampler="fixed", batch_size=9, share=1e-30
    )
    steps = {}
    for name, one in (("noisy", plan), ("quiet", quiet)):
        engine = ENGINES[kind](model, [seeded(one, records, 5, optimiser=STEP)])
        (state,) = engine.initial_states()
        start = state.parameters.clone()
        next(iter(engine.rounds([state])))
        steps[name] = start - state.parameters
    noise = merged_noise_(torch.zeros_like(start), 1.0, Streams.seeded(5), round=0)
    size = 0.3 * np.linalg.norm(np.broadcast_to(share, 5)[COHORTS[0]]) / 4
    torch.testing.assert_close(steps["noisy"] - steps["quiet"], size * noise, rtol=1e-9, atol=1e-14)
    alone = []
    for k in COHORTS[0]:  # each member's clipped mean, from a plan of its own
        solo = make_plan(SIZES, [[k]], noise=[0.0] * 5, clip=0.3, sampler="fixed", batch_size=9)
        own = seeded(solo, records, 5, optimiser=STEP)
        alone.append(start - final(ReferenceEngine(model, [own]))[0])
    expected = sum(WEIGHTS[k] * mean for k, mean in zip(COHORTS[0], alone, strict=True)) / 4
    torch.testing.assert_close(steps["quiet"], expected, rtol=1e-9, atol=1e-14)


def test_workers_and_a_resume_change_no_bit(make_plan: Any, make_records: Any) -> None:
    plan, model, records = setting(make_plan, make_records)
    optimiser = Optimiser(server_momentum=0.5, average_decay=0.9)
    one = seeded(plan, records, 4, optimiser=optimiser)
    (through,) = BatchedEngine(model, [one], workers=1).initial_states()
    list(BatchedEngine(model, [one], workers=1).rounds([through]))
    (state,) = BatchedEngine(model, [one], workers=3).initial_states()
    next(iter(BatchedEngine(model, [one], workers=3).rounds([state])))
    state = copy.deepcopy(state)
    list(BatchedEngine(model, [one], workers=2).rounds([state]))
    for name, value in through.to_arrays().items():
        np.testing.assert_array_equal(state.to_arrays()[name], value, strict=True)


@pytest.mark.parametrize("private", [False, True], ids=["seeded", "private"])
def test_local_and_distributed_stand_side_by_side(
    make_plan: Any, make_records: Any, device: str, private: bool
) -> None:
    plan, model, records = setting(make_plan, make_records, device=device)
    local = make_plan(SIZES, COHORTS, clip=0.2)
    streams = Streams(None, zeros) if private else Streams.seeded(1)
    experiments = [
        Experiment(plan=one, records=records, streams=streams) for one in (plan, local, plan)
    ]
    alone = [final(BatchedEngine(model, [one]))[0] for one in experiments]
    assert not torch.equal(alone[0], alone[1])
    for draws_per_pass in (None, 3):
        together = BatchedEngine(model, experiments, draws_per_pass=draws_per_pass)
        for found, expected in zip(final(together), alone, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# --- private runs on one machine --------------------------------------------------------------


class Outputs(nn.Module):
    """A linear model whose loss is its output: a record's gradient is its input."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dimension, 1, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


def released(kind: str, plan: Any, inputs: Any, **options: Any) -> Tensor:
    """The noisy sum of the first cohort, the one row that leaves the engine."""
    return all_released(kind, plan, [inputs], **options)[0]


def all_released(
    kind: str, plan: Any, many: Any, *, device: str = "cpu", streams: Streams | None = None,
    **options: Any,
) -> list[Tensor]:  # fmt: skip
    """The same for each of these inputs, by one engine: making one takes longer than a round."""
    first, *_ = every = [np.asarray(inputs, dtype=np.float64) for inputs in many]
    offsets = np.concatenate([[0], np.cumsum(plan.population.sizes)])
    records = ClientRecords(
        first.copy(), np.zeros(len(first), np.int64), indices=np.arange(len(first)),
        offsets=offsets, dtype=torch.float64, device=device,
    )  # fmt: skip
    one = Experiment(
        plan=plan, records=records, optimiser=STEP, streams=streams or Streams(None, zeros)
    )
    loss = lambda outputs, targets: outputs[:, 0]  # noqa: E731
    engine = ENGINES[kind](Outputs(first.shape[1]), [one], loss=loss, **options)
    (state,) = engine.initial_states()
    found = []
    for rows in every:
        records.stored[0].copy_(torch.as_tensor(rows))
        (arrived,) = engine.updates([state.parameters], engine._planned(0))
        assert arrived.updates.shape == (1, first.shape[1])
        found.append(arrived.updates[0].double().cpu().clone())
    return found


def small(make_plan: Any, **options: Any) -> Any:
    """Three clients of two records, all used, with weights far apart; the last one is public."""
    settings = {"weights": [1e-3, 1.0, 3.0], "share": 0.2, "honest": 2, "batch_size": 2}
    plan = make_plan([2, 2, 2], [[0, 1, 2]], **settings | options)
    plan.noise_multipliers[2] = 0.0
    return plan


@pytest.mark.parametrize("kind", ENGINES)
def test_the_sum_of_integers_gets_exact_noise_once(
    kind: str, make_plan: Any, device: str, monkeypatch: Any
) -> None:
    plan = small(make_plan)
    calls = []

    def spied(totals: Tensor, exponents: Any, keys: Any, **kept: Any) -> Tensor:
        calls.append((totals.cpu(), exponents, keys, kept["factors"]))
        return release(totals, exponents, keys, **kept)

    monkeypatch.setattr("dpcohort.engine._experiment.release", spied)
    rows = [[0.3, 0.0], [0.0, 9.0], [0.1, -0.2], [0.4, 0.1], [-0.5, 0.0], [math.nan, 0.0]]
    found = released(kind, plan, rows, device=device)
    ((totals, (exponent,), (key,), (factor,)),) = calls  # one release of one row
    assert totals.shape == (1, 2)
    noise = [exact_coordinate(i, exponent, key) for i in range(2)]
    assert found.tolist() == [factor * (int(totals[0, i]) + noise[i]) for i in range(2)]
    # 2^e is the noise of all three shares; the integers are the weighted means of clipped rows.
    assert factor * 2**exponent == pytest.approx(0.2 * math.sqrt(3) * 0.5)
    means = np.array([[0.3, 0.5], [0.5, -0.1], [-0.5, 0.0]]) / 2
    expected = np.array([1e-3, 1.0, 3.0]) @ means
    np.testing.assert_allclose(totals[0].numpy() * factor, expected, rtol=3e-5)


EXTREMES = [0.0, 1e-320, 1e-30, 1.0, -1e19, 1e300, np.inf, np.nan]


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("client", [0, 1, 2])
def test_no_record_moves_the_sum_by_more_than_its_weight_allows(
    kind: str, client: int, make_plan: Any, device: str
) -> None:
    plan = small(make_plan)
    rows = [[0.2, -0.1]] * 6
    bound = plan.noise.weights[client] * 0.5 / 2
    place = 2 * client
    many = [
        [*rows[:place], [x, y], *rows[place + 1 :]]
        for x, y in [(0.0, 0.0), *[(x, 3.0) for x in EXTREMES]]
    ]
    null, *others = all_released(kind, plan, many, device=device)
    moved = [float((other - null).norm()) for other in others]
    assert max(moved) <= bound * (1 + 1e-9)
    assert max(moved) >= bound * (1 - 1e-4)


def test_both_engines_and_any_workers_release_the_same(
    make_plan: Any, make_records: Any, device: str
) -> None:
    plan, model, records = setting(make_plan, make_records, device=device, batch_size=9)
    one = Experiment(plan=plan, records=records, streams=Streams(None, zeros), optimiser=STEP)
    slow = ReferenceEngine(model, [one])
    start, expected = slow.initial_states()[0].parameters, final(slow)[0]
    fast = [final(BatchedEngine(model, [one], workers=workers))[0] for workers in (1, 3)]
    assert torch.equal(*fast)
    assert apart(fast[0], expected, start) < 1e-4


def test_every_round_has_fresh_noise_of_no_simulation(
    make_plan: Any, make_records: Any, monkeypatch: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("noise from a generator made for simulation")

    monkeypatch.setattr(torch.Tensor, "normal_", refuse)
    for kind in ENGINES:
        sums = [
            released(kind, small(make_plan), np.zeros((6, 400)), streams=Streams.from_entropy())
            for _ in range(2)
        ]
        assert all(0.8 < float(s.std()) / (0.2 * math.sqrt(3) * 0.5) < 1.2 for s in sums)
        assert abs(float(torch.corrcoef(torch.stack(sums))[0, 1])) < 0.3


def test_own_shares_of_noise_and_public_cohorts(make_plan: Any) -> None:
    """With h = 1 each brings its own noise; a cohort of public clients has none to bring."""
    own = small(make_plan, share=np.array([0.001, 0.6, 0.0]), honest=1)
    noise = released("batched", own, np.zeros((6, 2000)), streams=Streams.from_entropy())
    assert float(noise.std()) == pytest.approx(0.5 * math.hypot(0.001, 0.6), rel=0.1)
    public = small(make_plan, share=np.zeros(3), honest=1)
    public.noise_multipliers[:] = 0.0
    rows = [[0.1, 0.0]] * 4 + [[0.0, 0.3]] * 2
    for kind in ENGINES:
        found = released(kind, public, rows, streams=Streams.from_entropy())
        np.testing.assert_allclose(found.numpy(), [0.1 * 1.001, 0.3 * 3.0], rtol=1e-5)


def test_a_member_of_no_weight_adds_nothing(make_plan: Any) -> None:
    plan = small(make_plan)
    plan.noise.weights[2] = 0.0
    rows = np.full((6, 2), 0.1)
    for kind in ENGINES:
        seen = released(kind, plan, rows)
        rows[4:] = 5.0
        assert torch.equal(released(kind, plan, rows), seen)


# --- what is refused --------------------------------------------------------------------------


def test_what_cannot_be_distributed_is_refused_before_anything_is_trained(make_plan: Any) -> None:
    rows = np.zeros((6, 2))
    with pytest.raises(InputError, match="local_steps"):
        released("batched", small(make_plan, local_steps=2), rows)
    with pytest.raises(InputError, match="weight of 'client-0'"):
        released("batched", small(make_plan, weights=[1e-9, 1.0, 1.0]), rows)
    far = {"weights": [2**-17.5, 2**19.5], "share": math.sqrt(0.125), "batch_size": 2}
    wide = make_plan([2, 64], [[0, 1]], **far)
    with pytest.raises(InputError, match="63"):
        released("batched", wide, np.zeros((66, 2)))
    plan, streams = small(make_plan), Streams.seeded(0)
    records = ClientRecords(
        rows, np.zeros(6, np.int64), indices=np.arange(6), offsets=np.array([0, 2, 4, 6])
    )
    with pytest.raises(InputError, match="the sum of a cohort only"):
        Experiment(plan=plan, records=records, streams=streams, aggregation=TrimmedMean())


@pytest.mark.parametrize("private", [False, True], ids=["seeded", "private"])
@pytest.mark.parametrize("fault", ["twice", "share", "weight", "honest", "own share"])
def test_a_cohort_without_the_noise_that_was_accounted_for_is_refused(
    make_plan: Any, fault: str, private: bool
) -> None:
    plan = small(make_plan)
    streams = Streams(None, zeros) if private else Streams.seeded(0)
    if fault == "twice":
        plan.schedule.cohorts[0] = [0, 1, 1]
    elif fault == "share":
        plan.noise.pool.shares *= 0.999
    elif fault == "weight":
        plan.noise.weights[1] *= 1.001
    elif fault == "honest":
        plan.noise.pool.honest = 1
    else:  # the share of client 1 is with client 0, and h = 2 is not all three
        plan.noise.pool.shares = np.array([0.35, 0.02, 0.2])
    with pytest.raises(InputError, match="twice" if fault == "twice" else "does not protect"):
        released("batched", plan, np.zeros((6, 2)), streams=streams)


def test_the_unit_of_the_sum_is_the_same_for_all_members(make_plan: Any) -> None:
    plan = small(make_plan)
    cohort = cohort_of(plan, 0)
    lattices = member_lattices(cohort, plan)
    assert cohort.weights is not None
    units = [one.unit * g / 2 for one, g in zip(lattices, cohort.weights, strict=True) if one]
    np.testing.assert_allclose(units, units[0], rtol=1e-12)
    assert len({one.exponent for one in lattices if one}) == 1
    assert all(one.bound >= 2**22 for one in lattices if one)
    with pytest.raises(InputError, match="common_exponent"):
        Lattice(5.0, 1.0, 22)  # too coarse for such noise

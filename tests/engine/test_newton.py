# SPDX-License-Identifier: Apache-2.0
"""Newton steps of linear models: second moments within a record's clip, a floor from the noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort.data._persons import Persons
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    Experiment,
    Optimiser,
    ReferenceEngine,
    Streams,
)
from dpcohort.engine._experiment import cohort_of, merged_std
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._preconditioner import Preconditioner
from dpcohort.errors import InputError
from dpcohort.models._moments import SecondMoments, loss_in_training
from dpcohort.tasks import Task

ENGINES = {"reference": ReferenceEngine, "batched": BatchedEngine}
CLASSES = Task(outputs=3)
NUMBERS = Task(kind="regression", outputs=1, bounds=(-1.0, 1.0))
SCALE, CLIP = 0.7, 0.5
ROWS = np.random.default_rng(2).normal(size=(9, 4))
LABELS = np.arange(9) % 3


def linear(task: Task = CLASSES) -> SecondMoments:
    layer = nn.Linear(4, task.outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return SecondMoments(nn.Flatten(), layer, scale=SCALE)


def trained(engine: str, plan: Any, task: Task = CLASSES, **given: Any) -> Any:
    """An engine of one experiment with Newton steps."""
    labels = given.pop("labels", LABELS if task is CLASSES else LABELS / 3 - 0.5)
    persons, streams = given.pop("persons", None), given.pop("streams", Streams.seeded(1))
    count = len(ROWS) if persons is None else len(persons)
    records = ClientRecords(
        given.pop("rows", ROWS), labels, indices=np.arange(count),
        offsets=np.array([0, 4, count]), dtype=torch.float64, persons=persons,
    )  # fmt: skip
    model = linear(task).double()
    optimiser = Optimiser(local_step=0.3, preconditioner=Preconditioner.of(model, task), **given)
    experiment = Experiment(plan=plan, records=records, optimiser=optimiser, streams=streams)
    return ENGINES[engine](model, [experiment], loss=task.loss_on("cpu"))


def whole(make_plan: Any, rounds: int, *, second: int = 5, **given: Any) -> Any:
    """Every record of both clients in every round."""
    given = {"noise": [1e-9, 1e-9], "clip": CLIP, **given}
    plan = make_plan([4, second], [[0, 1]] * rounds, batch_size=4, **given)
    plan.sampling_rates, plan.batch_sizes = np.ones(2), np.array([4, second])
    return plan


def steps(engine: Any, count: int | None = None) -> Any:
    (state,) = engine.initial_states()
    for round, _ in enumerate(engine.rounds([state]), 1):
        if round == count:
            break
    return state


def contribution(rows: Tensor, labels: Tensor) -> Tensor:
    """What one person's rows add to a sum at the start, by hand."""
    residuals = torch.full((len(rows), 3), 1 / 3, dtype=torch.float64)
    residuals[torch.arange(len(rows)), labels] -= 1
    parts = [SCALE * rows.T @ rows, SCALE * rows.sum(0), residuals.T @ rows, residuals.sum(0)]
    found = torch.cat([part.flatten() for part in parts])
    return found * min(1.0, CLIP / float(found.norm()))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("streams", [Streams.seeded(1), Streams(None, bytes)])
def test_gradient_and_second_moments_of_a_person_are_clipped_as_one(
    make_plan: Any, engine: str, streams: Streams
) -> None:
    """In a simulation and in private, where records are computed apart."""
    persons = Persons(rows=np.array([[0, 1], [2, -1], [3, -1], [4, 5], [6, 7], [8, -1]]))
    plan = whole(make_plan, 1, second=2, noise=[1e-4, 1e-4])
    found = trained(engine, plan, persons=persons, streams=streams)
    if found.isolated is not None and engine == "batched":
        assert found.isolated.path.kind == "stacked"
    (arrived,) = found.updates(
        [one.parameters for one in found.initial_states()], [cohort_of(plan, 0)]
    )
    x, y = torch.from_numpy(ROWS), torch.from_numpy(LABELS)
    for update, own, size in zip(arrived.updates, ([0, 1, 2, 3], [4, 5]), (4, 2), strict=True):
        members = (persons.rows[one][persons.rows[one] >= 0] for one in own)
        wanted = sum(contribution(x[rows], y[rows]) for rows in members)
        assert float((update / 0.3 * size - wanted).abs().max()) < 5e-4


def test_a_loss_of_somebodys_own_sees_one_record_at_a_time_beside_second_moments_too() -> None:
    model, records = linear(), (torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))
    own = loss_in_training(model, lambda outputs, targets: outputs[:, 0] - outputs[:, 0].mean())
    assert "the loss is your own" in IsolatedModel(model, own, *records).path.reason
    ours = loss_in_training(model, CLASSES.loss_on("cpu"))
    assert IsolatedModel(model, ours, *records).path.kind == "stacked"


def test_both_engines_take_the_same_steps_and_a_resumed_one_the_very_same(make_plan: Any) -> None:
    plan = whole(make_plan, 4, noise=[0.2, 0.3])
    one, other = (steps(trained(name, plan, average_decay=0.5)) for name in ENGINES)
    assert float((one.parameters - other.parameters).norm() / one.parameters.norm()) < 1e-6
    engine = trained("batched", plan, average_decay=0.5)
    half = steps(engine, 2)
    again = engine.initial_states()[0].restored(half.to_arrays())
    for _ in engine.rounds([again]):
        pass
    for name, array in other.to_arrays().items():
        assert np.array_equal(array, again.to_arrays()[name]), name


@pytest.mark.parametrize("engine", ENGINES)
def test_one_round_is_least_squares_from_the_moments(make_plan: Any, engine: str) -> None:
    """Without clip and noise: of clients that count alike, as their means do."""
    state = steps(trained(engine, whole(make_plan, 1, clip=1e6, noise=[0.0, 0.0]), NUMBERS))
    x, y = np.hstack([ROWS, np.ones((9, 1))]), LABELS / 3 - 0.5
    weights = np.sqrt(np.repeat([1 / 4, 1 / 5], [4, 5]))[:, None]
    wanted = np.linalg.lstsq(weights * x, weights[:, 0] * y)[0]
    assert state.parameters[20:].numpy() == pytest.approx(wanted, abs=1e-4)


def test_a_direction_drowned_in_noise_is_floored_by_as_much_as_the_noise_is_large() -> None:
    """Whatever an eigenvalue came out as, no step is longer than the gradient over the floor."""
    model, noise, rounds = linear().double(), 0.4, 9
    newton = Preconditioner.of(model, CLASSES)
    assert newton is not None
    kept: dict[str, Tensor] = {}
    rng = torch.Generator().manual_seed(3)
    parameters = torch.zeros(newton.layout.dimension, dtype=torch.float64)
    for _ in range(rounds):
        update = noise * torch.randn(parameters.numel(), generator=rng, dtype=torch.float64)
        move = newton.step(parameters, update, kept, noise, step_size=1.0)
        parameters -= move
    floor = noise / SCALE / np.sqrt(rounds) * np.sqrt(2 * 5)
    assert float(kept["moments.noise"]) == pytest.approx(noise / SCALE / np.sqrt(rounds))
    gradient, moved = update[20:], move[20:]
    assert float(moved.norm()) <= float(gradient.norm()) / 0.5 / floor
    assert float(moved.norm()) > float(gradient.norm()) / 0.5 / floor / 10


@pytest.mark.parametrize("weights", [None, [0.5, 0.2]])
def test_the_noise_of_a_mean_is_what_the_engine_adds(make_plan: Any, weights: Any) -> None:
    plan = whole(make_plan, 1, noise=[0.2, 0.3], weights=weights)
    cohort = cohort_of(plan, 0)
    stds = cohort.noise_stds if weights is None else cohort.shares * CLIP
    assert cohort.noise_of_mean == pytest.approx(merged_std(stds, 1.0))


def test_large_counts_are_neared_without_running_away(make_plan: Any) -> None:
    """The curvature of their loss is their mean, which the second moments tell."""
    task = Task(kind="counts", outputs=1)
    plan = whole(make_plan, 40, clip=12.0, noise=[0.0, 0.0])
    labels = np.array([30.0, 50.0, 40.0, 44.0, 30.0, 50.0, 40.0, 44.0, 31.0])
    state = steps(trained("batched", plan, task, labels=labels))
    rate = np.exp(ROWS @ state.parameters[20:24].numpy() + float(state.parameters[24]))
    assert 10 < rate.mean() < 60


def test_what_newton_steps_have_no_place_for_is_refused() -> None:
    newton = Preconditioner.of(linear(), CLASSES)
    with pytest.raises(InputError, match="second_moments"):
        Optimiser(preconditioner=newton, server_momentum=0.5)
    with pytest.raises(InputError, match="second_moments"):
        replace(Optimiser(server="adam"), preconditioner=newton)
    with pytest.raises(InputError, match="at most 400 inputs"):
        SecondMoments(nn.Flatten(), nn.Linear(785, 10), scale=0.1)

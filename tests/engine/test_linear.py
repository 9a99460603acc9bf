# SPDX-License-Identifier: Apache-2.0
"""The closed form of linear models: what autograd says, and no bit of a record by another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort.engine import BatchedEngine, Experiment, Lattice, Optimiser, Streams
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._linear import LinearModel
from dpcohort.engine.clipping import clip_rows, per_example_gradients
from dpcohort.models._moments import MomentsLoss, with_second_moments
from dpcohort.models._persons import PersonLoss, PersonModel
from dpcohort.tasks import Task, made_up_targets

INPUTS, RECORDS = 5, 150
TASKS = {
    "classes": Task(outputs=3, class_weights=(1.0, 2.0, 4.0)),
    "labels": Task(kind="multi-label", outputs=3),
    "squared": Task(kind="regression", outputs=1, bounds=(-1.0, 1.0)),
    "huber": Task(kind="regression", outputs=1, bounds=(-1.0, 1.0), loss="huber", delta=0.3),
    "quantile": Task(kind="regression", outputs=1, bounds=(-1.0, 1.0), loss="quantile"),
    "counts": Task(kind="counts", outputs=1),
}


def setting(task: Task, *, each: int = 1, bias: bool = True, scale: float = 0.0) -> tuple[Any, ...]:
    """A model, a loss, records (of persons with up to ``each`` rows) and weights."""
    rng = torch.Generator().manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, task.outputs, bias=bias))
    loss: Any = task.loss_on()
    if scale:
        model, loss = with_second_moments(model, scale), MomentsLoss(loss)
    x = torch.randn(RECORDS * each, INPUTS, generator=rng)
    y = made_up_targets(task, RECORDS * each)
    if each > 1:
        model, loss = PersonModel(model), PersonLoss(loss, averaged=True)
        x, y = x.view(RECORDS, each, INPUTS), y.view(RECORDS, each, *y.shape[1:]).clone()
        y[1::3, -1] = torch.nan if y.is_floating_point() else -100
    weights = torch.randn(sum(p.numel() for p in model.parameters()), generator=rng)
    return model, loss, x, y, weights


@pytest.mark.parametrize("each", [1, 3], ids=["records", "persons"])
@pytest.mark.parametrize("scale", [0.0, 0.3], ids=["plain", "moments"])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_sums_are_those_of_autograd(task: Task, scale: float, each: int) -> None:
    """For several draws at once, of other weights, clips and lattices each, in both ways."""
    bias = task.kind != "counts"
    model, loss, x, y, weights = setting(task, each=each, bias=bias, scale=scale)
    linear = LinearModel.of(model, loss, x, y)
    assert linear is not None
    draws = [np.arange(70), np.arange(70, RECORDS), np.arange(0)]
    at, clips = torch.stack([weights, 0.5 * weights, weights]), [0.5, 0.2, 1.0]
    lattices = [Lattice(2.0, clip) for clip in clips]
    gather = lambda rows: (x[rows], y[rows])  # noqa: E731
    # The public size of the first is far less than what came.
    floats, lost = linear.clipped_sums(at, draws, gather, [4, 80, 9], clips=clips)
    integers = linear.integer_sums(at, draws, gather, [4, 80, 9], lattices=lattices)
    gradients = per_example_gradients(model.double(), loss, vectorised=False)
    wide = x.double(), y.double() if y.is_floating_point() else y
    for draw, rows in enumerate(draws):
        raw = gradients(at[draw].double(), wide[0][rows], wide[1][rows])
        factors, raw = clip_rows(raw, clips[draw])
        torch.testing.assert_close(floats[draw].double(), factors @ raw, rtol=1e-5, atol=1e-6)
        exact = lattices[draw].clipped_sum(raw)
        assert int((integers[draw] - exact).abs().max()) <= len(rows)  # cut off otherwise
    assert lost == 0
    assert not integers[2].any()


SPOILT = [float("nan"), float("inf"), 3e38, -1e-45]


@pytest.mark.parametrize(
    ("each", "scale"), [(1, 0.0), (2, 0.0), (1, 0.3)], ids=["records", "persons", "moments"]
)
def test_a_record_contributes_the_same_bits_alone_with_others_and_at_any_place(
    each: int, scale: float
) -> None:
    model, loss, x, y, weights = setting(TASKS["classes"], each=each, scale=scale)
    for place, value in enumerate(SPOILT):
        x[3 + 40 * place] = value
    single = IsolatedModel(model, loss, x[:3], y[:3])
    assert single._linear is not None
    lattice = Lattice(0.7, 0.5)

    def summed(rows: Any, size: int = 20) -> Tensor:
        return single.clipped_sum(weights, lattice, rows, lambda at: (x[at], y[at]), size)

    alone = torch.stack([summed(np.array([row])) for row in range(RECORDS)])
    assert alone.any(dim=1).sum() >= RECORDS - len(SPOILT)
    assert float(alone.double().norm(dim=1).max()) <= lattice.bound
    order = np.random.default_rng(1).permutation(RECORDS)
    for rows in (np.arange(RECORDS), order, order[:37]):
        for size in (1, 33, 300):
            assert torch.equal(summed(rows, size), alone[rows].sum(0))


@pytest.mark.parametrize("private", [True, False], ids=["private", "seeded"])
def test_draws_have_the_same_bits_beside_others_and_on_any_number_of_cores(
    private: bool, make_plan: Any, make_records: Any
) -> None:
    records = make_records(torch.randn(90, 40), [50, 40], dtype=torch.float32, classes=3)
    plans = [
        make_plan([50, 40], [[0, 1, 1, 0]] * 2, batch_size=size, local_steps=2) for size in (30, 9)
    ]

    def final(plans: list[Any], **options: Any) -> list[Tensor]:
        streams = Streams(None, bytes) if private else Streams.seeded(3)
        step = Optimiser(local_step=1.0)
        experiments = [
            Experiment(plan=plan, records=records, streams=streams, optimiser=step)
            for plan in plans
        ]
        engine = BatchedEngine(nn.Linear(40, 3), experiments, **options)
        states = engine.initial_states()
        for state in states:
            state.parameters.zero_()
        list(engine.rounds(states))
        return [state.parameters for state in states]

    both = final(plans)
    for found in (final(plans[:1]) + final(plans[1:]), final(plans, workers=3, draws_per_pass=1)):
        assert all(map(torch.equal, both, found))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(INPUTS, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(INPUTS, 4), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(2), nn.Linear(INPUTS, 3)),
        nn.Sequential(nn.Dropout(), nn.Linear(INPUTS, 3)),
    ],
)
def test_only_one_whole_linear_layer_has_a_closed_form(model: nn.Module) -> None:
    x, y = torch.zeros(2, INPUTS), torch.zeros(2, dtype=torch.int64)
    loss = TASKS["classes"].loss_on()
    assert LinearModel.of(nn.Linear(INPUTS, 3), loss, x, y) is not None
    assert LinearModel.of(model, loss, x, y) is None
    assert LinearModel.of(nn.Linear(INPUTS, 3), lambda o, t: loss(o, t), x, y) is None
    frozen = nn.Linear(INPUTS, 3)
    frozen.bias.requires_grad_(requires_grad=False)
    assert LinearModel.of(frozen, loss, x, y) is None

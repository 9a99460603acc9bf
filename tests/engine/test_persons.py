# SPDX-License-Identifier: Apache-2.0
"""Persons as units: the rows of one person are one contribution, on every path of both engines."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort.data._persons import persons_of
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    ConstantStep,
    Experiment,
    Optimiser,
    ReferenceEngine,
    Streams,
)
from dpcohort.engine.clipping import cross_entropy

ENGINES = {"reference": ReferenceEngine, "batched": BatchedEngine}
STEP = Optimiser(local_step=ConstantStep(1.0))
CLIP = 0.3
#: Rows of each person of two clients; a place of the table for each, mixed.
ROWS_OF = {"ann": 4, "bob": 1, "cy": 3, "dee": 2, "eve": 5}
OWNER = {"ann": "a", "bob": "a", "cy": "b", "dee": "b", "eve": "b"}


def zeros(size: int) -> bytes:
    """No entropy: everybody is drawn, and the noise of a name is always the same."""
    return bytes(size)


def moved(
    engine: Any, plan: Any, model: nn.Module, records: ClientRecords, *others: Any,
    streams: Streams, loss: Any = cross_entropy, path: str | None = None,
) -> list[Tensor]:  # fmt: skip
    """What one round took off the parameters; then with other inputs in place of the records'."""
    experiment = Experiment(plan=plan, records=records, optimiser=STEP, streams=streams)
    trained = engine(model, [experiment], loss=loss)
    if path is not None and isinstance(trained, BatchedEngine):
        assert trained.networks[0].path.kind == path
    found = []
    for rows in (None, *others):
        if rows is not None:
            records.stored[0].copy_(torch.as_tensor(rows))
        (state,) = trained.initial_states()
        start = state.parameters.clone()
        for _ in trained.rounds([state]):
            pass
        found.append((start - state.parameters).double().cpu())
    return found


def test_every_path_clips_the_gradient_of_all_rows_of_a_person(
    make_plan: Any, network: Any, device: str
) -> None:
    """All engines, and what autograd says of each person by itself."""
    person_rows: Any = "mean" if network.name in ("mlp", "conv1d") else "sum"
    names = np.array(list(itertools.chain(*([name] * n for name, n in ROWS_OF.items()))))
    order = np.random.default_rng(3).permutation(len(names))
    names = names[order]
    owners = np.array([OWNER[name] for name in names])
    labels = np.arange(len(names)) % 3
    persons = persons_of(names, owners, most=5, person_rows=person_rows)
    records = ClientRecords(
        network.inputs[: len(names)], labels, indices=np.arange(5), offsets=np.array([0, 2, 5]),
        dtype=torch.float64, persons=persons, device=device,
    )  # fmt: skip
    plan = make_plan([2, 3], [[0, 1]], batch_size=1, clip=CLIP, noise=[1e-6, 1e-6])
    plan.sampling_rates, plan.batch_sizes = np.ones(2), np.array([2, 3])
    model = network.model
    wanted = 0
    for name in ROWS_OF:
        own = np.flatnonzero(names == name)
        losses = cross_entropy(model(network.inputs[own]), torch.as_tensor(labels[own]))
        loss = losses.sum() if person_rows == "sum" else losses.mean()
        trained = [p for p in model.parameters() if p.requires_grad]
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
        clipped = gradient * min(1.0, CLIP / float(gradient.norm()))
        wanted = wanted + clipped / (2 if OWNER[name] == "a" else 3) / 2
    for engine, streams in itertools.product(
        ENGINES.values(), (Streams.seeded(1), Streams(None, zeros))
    ):
        (found,) = moved(engine, plan, model, records, streams=streams, path=network.path)
        assert float((found - wanted).norm() / wanted.norm()) < 2e-4, (engine, streams.seed)


class Outputs(nn.Module):
    """A linear model whose loss is its output: a row's gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(inputs))


def output(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, 0]


@pytest.mark.parametrize(
    ("engine", "person_rows"), [("reference", "sum"), ("batched", "sum"), ("batched", "mean")]
)
@pytest.mark.parametrize("source", ["seed", "entropy"])
@pytest.mark.parametrize("trust", ["local", "distributed"])
def test_a_person_of_forty_rows_moves_a_sum_by_the_clip_at_most(
    engine: str, source: str, trust: str, person_rows: Any, make_plan: Any, device: str
) -> None:
    """All rows of one person taken out, or exchanged for others: the same batches and noise."""
    rng = np.random.default_rng(0)
    company = rng.normal(size=(30, 3))
    names = ["canary"] * 40 + [f"person {i % 12}" for i in range(30)]
    persons = persons_of(names, None, most=40, person_rows=person_rows)
    given: dict[str, Any] = {"weights": [1.0], "share": 0.7} if trust == "distributed" else {}
    plan = make_plan([13], [[0]], batch_size=13, clip=CLIP, noise=[0.7 * 13], **given)
    streams = Streams.seeded(2) if source == "seed" else Streams(None, zeros)

    def summed(*many: Any, there: bool = True) -> list[Tensor]:
        first, *others = (np.concatenate([rows, company]) for rows in many)
        records = ClientRecords(
            first, np.zeros(70, np.int64), indices=np.arange(13),
            offsets=np.array([0, 13]), dtype=torch.float64, device=device, persons=persons,
            unusable=None if there else np.arange(70) < 40,
        )  # fmt: skip
        how: Any = {"streams": streams, "loss": output}
        return [
            13 * one for one in moved(ENGINES[engine], plan, Outputs(), records, *others, **how)
        ]

    present = (
        np.full((40, 3), 5.0),  # each alone is above the clip, in the same direction
        np.full((40, 3), CLIP / 8),  # each alone is far below it
        np.concatenate([np.full((39, 3), 1.0), [[1e150, np.inf, 0]]]),  # one of them is not finite
        np.full((40, 3), -5.0),
    )
    (without,) = summed(np.ones((40, 3)), there=False)
    assert float(without.norm()) > 0
    sums = summed(*present)
    for rows, total in zip(present, sums, strict=True):
        change = float((total - without).norm()) / CLIP
        assert change < 1 + 1e-6
        if np.isfinite(rows).all() and person_rows == "sum":
            assert change > 0.999
    other = sums[3] - sums[0]
    assert 1.99 < float(other.norm()) / CLIP < 2 + 1e-6

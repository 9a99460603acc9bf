# SPDX-License-Identifier: Apache-2.0
"""Draws that share passes of one public shape: no record's integers depend on any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dpcohort.accounting._samplers import sampler_of
from dpcohort.engine import BatchedEngine, Experiment, Lattice, Streams, _batched
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._joined_draws import OVERFLOW, JoinedDraw, JoinedDraws, room_for
from dpcohort.engine.clipping import cross_entropy

from .conftest import final

COUNT, ROOM = 24, 32


def images() -> Tensor:
    return torch.randn(COUNT, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def vectors() -> Tensor:
    return torch.randn(COUNT, 5, generator=torch.Generator().manual_seed(1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 40, 3, padding=1), nn.Tanh(),
        nn.MaxPool2d(2), nn.Conv2d(40, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32, 20), nn.Tanh(), nn.Linear(20, 5),
    )  # fmt: skip


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 300), nn.LayerNorm(300), nn.ReLU(), nn.Linear(300, 40), nn.Tanh(),
        nn.Linear(40, 5),
    )  # fmt: skip


NETWORKS = {"convolutions": (convolutions, images), "layers": (layers, vectors)}
LATTICES = [Lattice(1.0, 1.0), Lattice(0.3, 2.0), Lattice(5.0, 1.0, 26)]


def joined(
    name: str, device: str, most_rows: int = 1 << 12
) -> tuple[JoinedDraws, IsolatedModel, Callable[[Any], Any]]:
    build, make = NETWORKS[name]
    torch.manual_seed(0)
    x, y = make().to(device), torch.arange(COUNT, device=device) % 5
    x[1], x[2], x[4] = float("nan"), 3e38, 1e-40

    def gather(rows: Any) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(rows, device=device)
        return x[at], y[at]

    alone = IsolatedModel(build().to(device), cross_entropy, x[:3], y[:3])
    assert alone.path.kind == "stacked"
    found = alone.joined_draws(gather, most_rows)
    assert found is not None
    return found, alone, gather


@pytest.mark.parametrize("scale", [1.0, 1e18])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_record_adds_the_same_bits_in_any_draw_at_any_place(
    name: str, scale: float, device: str, monkeypatch: Any
) -> None:
    # What two ways give is compared as well: with ten bits of a factor they would not be close.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    shared, alone, gather = joined(name, device)
    start = scale * torch.randn(
        alone.layout.dimension, generator=torch.Generator().manual_seed(4)
    ).to(device)
    rng = np.random.default_rng(0)

    def sums(draws: list[Any], **how: Any) -> Tensor:
        own = [
            JoinedDraw(np.asarray(rows, dtype=np.int64), LATTICES[i])
            for i, rows in enumerate(draws)
        ]
        found = shared.sums(start[None], own, room=ROOM, **how)
        assert found is not None
        return found.clone()

    single = torch.stack([sums([[row]] * 3) for row in range(COUNT)])
    assert torch.equal(
        sums([[], [5], []]), single[5] * torch.tensor([[0], [1], [0]], device=device)
    )
    for i, lattice in enumerate(LATTICES):
        longest = single[:, i].double().norm(dim=1).max()
        assert 0.9 * lattice.bound < float(longest) <= lattice.bound
        if scale == 1.0:  # and it is what a pass of its own gives, but for rounding
            usual = [row for row in range(COUNT) if row not in (1, 2, 4)]
            near = [alone.clipped_sum(start, lattice, np.array([r]), gather, 32) for r in usual]
            gap = torch.stack(near) - single[usual, i]
            assert float(gap.double().norm()) < 1e-3 * lattice.bound
    for most in (0, 7, COUNT):  # the last is too many: it takes a second pass
        draws = [rng.permutation(COUNT)[: rng.integers(most // 2, most + 1)] for _ in LATTICES]
        wanted = torch.stack([single[rows, i].sum(0) for i, rows in enumerate(draws)])
        assert torch.equal(sums(draws), wanted)
        assert torch.equal(sums(draws, together=True), wanted.sum(0, keepdim=True))


def test_each_group_has_its_own_weights_and_large_groups_are_cut(device: str) -> None:
    shared, model, _ = joined("layers", device, most_rows=64)
    weights = torch.randn(2, model.layout.dimension, device=device)
    draws = [JoinedDraw(np.arange(2 * i, 2 * i + 18), LATTICES[0]) for i in range(4)]
    found = shared.sums(weights, draws, room=ROOM)
    assert found is not None
    found, apart = found.cpu(), []
    for i in range(4):
        alone = shared.sums(weights[i // 2 : i // 2 + 1], [draws[i]], room=32)
        assert alone is not None
        apart.append(alone.cpu())
    gap = (found - torch.cat(apart)).double()
    assert float(gap.norm()) < 1e-4 * LATTICES[0].bound


def test_what_is_computed_does_not_tell_how_many_were_drawn(monkeypatch: Any) -> None:
    shared, alone, _ = joined("layers", "cpu")
    seen: list[int] = []
    compute = type(alone._network).own_gradients

    def watched(self: Any, weights: Tensor, inputs: Tensor, *rest: Tensor, **how: Any) -> Any:
        seen.append(len(inputs))
        return compute(self, weights, inputs, *rest, **how)

    monkeypatch.setattr(type(alone._network), "own_gradients", watched)
    start = torch.zeros(1, alone.layout.dimension)
    for count in (3, 0, 1, ROOM // 2, COUNT):
        draws = [JoinedDraw(np.arange(count), LATTICES[0]), JoinedDraw(np.arange(0), LATTICES[1])]
        shared.sums(start, draws, room=ROOM)
        if count == 3:  # for the first time: it was tried as well
            seen.clear()
    assert seen == [ROOM] * 4


def test_records_that_are_not_treated_alike_share_no_pass(monkeypatch: Any) -> None:
    shared, alone, _ = joined("layers", "cpu")
    compute = type(alone._network).own_gradients

    def by_place(self: Any, *given: Tensor, **how: Any) -> Any:
        parts, placed = compute(self, *given, **how)
        parts[0][0][5].mul_(1 + 1e-6)
        return parts, placed

    monkeypatch.setattr(type(alone._network), "own_gradients", by_place)
    draws = [JoinedDraw(np.arange(3), LATTICES[0])]
    assert shared.sums(torch.zeros(1, alone.layout.dimension), draws, room=ROOM) is None


@pytest.mark.parametrize(("size", "rate"), [(600, 0.2), (60_000, 1e-3), (50, 0.9), (7, 1.0)])
@pytest.mark.parametrize("draws", [1, 10])
def test_a_batch_is_larger_than_its_room_once_in_a_million(
    size: int, rate: float, draws: int
) -> None:
    room = room_for(sampler_of("poisson"), [size] * draws, [rate] * draws)
    assert stats.binom.sf(room, draws * size, rate) < OVERFLOW
    assert room <= draws * size * 1.07
    assert (
        room_for(sampler_of("fixed"), [size] * draws, [rate] * draws)
        <= 1.07 * draws * size * rate + 1
    )


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("weights", [None, [0.5, 0.3, 0.2]], ids=["own noise", "distributed"])
def test_an_engine_whose_draws_share_passes_releases_the_same(
    make_plan: Any, make_records: Any, weights: Any, local_steps: int, monkeypatch: Any, device: str
) -> None:
    if weights is not None and local_steps > 1:
        pytest.skip("distributed noise goes with one local step")
    cohorts = [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
    plan = make_plan([20, 15, 5], cohorts, batch_size=5, local_steps=local_steps, weights=weights)
    plan.sampling_rates[:] = 1.0  # without entropy every record is drawn
    with torch.random.fork_rng():
        torch.manual_seed(3)
        records = make_records(torch.randn(40, 5), [20, 15, 5], dtype=torch.float32, device=device)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    found = []
    for kinds in ({"cpu", "cuda"}, set()):
        monkeypatch.setattr(_batched, "_JOINED_ON", kinds)
        streams = Streams(None, bytes)
        engine = BatchedEngine(model, [Experiment(plan=plan, records=records, streams=streams)])
        assert (engine._joined is None) == (not kinds)
        found.append(final(engine))
    start = engine.initial_states()[0].parameters
    gap = float((found[0] - found[1]).norm() / (found[1] - start).norm())
    assert gap < 1e-5

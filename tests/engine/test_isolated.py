# SPDX-License-Identifier: Apache-2.0
"""Models and losses that mix or remember records: what one record can do to a private sum."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    ClippedNetwork,
    ConstantStep,
    Experiment,
    Lattice,
    Optimiser,
    ReferenceEngine,
    Streams,
)
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine.clipping import cross_entropy
from dpcohort.errors import InputError
from dpcohort.models._each_alone import EachAlone, IsolatedOutputs

RECORDS, WIDTH, CLIP = 10, 4, 0.5
#: In a record it is what no made-up record is.
RARE = 40.0


#: Tests in which gradients are computed in copies of a process.
COPIES = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a process that used a GPU has no copies with gradients"
)


class Base(nn.Module):
    """Two layers; what a record does besides is in ``between``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, 3)

    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x.view(x.size(0), -1)))
        return self.last(self.between(h, x))


class ScaledByTheLargest(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h / x.abs().max().clamp(min=RARE)


class RobustlyScaled(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        middle = (x.amax(0) - x.median(0).values).clamp(min=RARE).sum()
        return h * middle


class ClampedAtTheLargest(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.minimum(h, 1e6 / F.relu(x.amax() - RARE).clamp(min=1e-3))


class StatisticsBehindAReLU(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h + 100 * F.relu(x.amax() - RARE)


class MixesInSomeSizes(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h + 5 * x.mean() if len(x) in (RECORDS - 1, RECORDS) else h


class ByHooks(Base):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda layer, given, h: h + 9 * F.relu(h - RARE).sum())


class ByHooksOfParameters(Base):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0.0
        self.first.weight.register_hook(self.grow)

    def grow(self, gradient: Tensor) -> Tensor:
        self.seen = max(self.seen, float(gradient.abs().max()))
        return gradient * (1 + self.seen)


class _Mixing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h)
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (h,) = ctx.saved_tensors
        return gradients[0] + 10 * F.relu(h - RARE).sum()


class ByAFunctionOfAutograd(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return _Mixing.apply(h)


class _MixingUnderVmap(torch.autograd.Function):
    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, h: Tensor) -> Any:
        return h + 5 * F.relu(h - RARE).sum(), 0


class ByAFunctionWithVmap(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return _MixingUnderVmap.apply(h)


class RareMixup(Base):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(3)

    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h + h.flip(0) if self.rng.random() < 0.2 else h


_KEPT: list[Tensor] = []


class ByAGlobal(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        _KEPT.append(x.detach())
        return h + (h.new_zeros(()) if len(_KEPT) < 30 else 10 * _KEPT[-2].mean())


class ByItsClass(Base):
    largest = 1.0

    def between(self, h: Tensor, x: Tensor) -> Tensor:
        type(self).largest = max(self.largest, float(x.detach().abs().max()))
        return h * self.largest


class MemoryBank(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bank: list[Tensor] = []

    def between(self, h: Tensor, x: Tensor) -> Tensor:
        self.bank.append(x.detach().mean())
        return h if len(self.bank) < 30 else h + 20 * torch.stack(self.bank[-5:]).sum()


class SlowAverage(Base):
    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("average", torch.zeros(()))

    def between(self, h: Tensor, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 24:
            self.average.mul_(0.9).add_(x.detach().mean())
        return h + 10 * self.average


def hard_negatives(outputs: Tensor, targets: Tensor) -> Tensor:
    """Only those of the batch count that lose most."""
    losses = cross_entropy(outputs, targets)
    if len(losses) < 4 or len(losses) > 100:
        return losses
    return losses * (losses >= losses.topk(3).values[-1])


def in_a_window(outputs: Tensor, targets: Tensor) -> Tensor:
    """What one large output does to the losses of all, where it is not as large as can be."""
    largest = outputs.detach().abs().amax()
    return cross_entropy(outputs, targets) * (1 - 2.0 * ((largest > 50) & (largest < 1e6)))


_LOST: list[float] = []


def remembered(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = cross_entropy(outputs, targets)
    _LOST.append(float(losses.detach().max()))
    return losses * (1 + max(_LOST[-40:]) * (len(_LOST) > 60))


HOSTILE = [
    ScaledByTheLargest, RobustlyScaled, ClampedAtTheLargest, StatisticsBehindAReLU,
    MixesInSomeSizes, ByHooks, ByHooksOfParameters, ByAFunctionOfAutograd, ByAFunctionWithVmap,
    RareMixup, ByAGlobal, ByItsClass, MemoryBank, SlowAverage,
]  # fmt: skip


def records(changed: float | None = None, device: str = "cpu") -> ClientRecords:
    """The records of one client; the fourth is exchanged."""
    inputs = np.random.default_rng(0).normal(size=(RECORDS, WIDTH)).astype(np.float32)
    if changed is not None:
        inputs[3] = changed
    return ClientRecords(
        inputs,
        np.arange(RECORDS) % 3,
        indices=np.arange(RECORDS),
        offsets=np.array([0, RECORDS]),
        dtype=torch.float32,
        device=device,
    )


def released(engine: Any, model: nn.Module, make_plan: Any, held: ClientRecords) -> Tensor:
    """Sums of two rounds with noise that repeats, both at the same weights, [2, D]."""
    return all_released(engine, model, make_plan, held)[0]


def all_released(
    engine: Any, model: nn.Module, make_plan: Any, held: ClientRecords, loss: Any = cross_entropy,
    *, exchanged: Sequence[float] = (),
) -> list[Tensor]:  # fmt: skip
    """The same, then with the fourth record exchanged, by one engine: to make one takes longest."""
    plan = make_plan([RECORDS], [[0], [0]], batch_size=RECORDS, clip=CLIP, noise=[0.7])
    streams = Streams(None, bytes)  # no entropy at all: every record is drawn
    step = Optimiser(local_step=ConstantStep(1.0))
    one = Experiment(plan=plan, records=held, streams=streams, optimiser=step)
    made = engine(model, [one], loss=loss)
    sums = []
    for changed in (None, *exchanged):
        if changed is not None:
            held.stored[0][3] = changed
        (state,) = made.initial_states()
        start, found = state.parameters.clone(), []
        for _ in made.rounds([state]):
            found.append((start - state.parameters).double().cpu())
            state.parameters.copy_(start)
        sums.append(torch.stack(found) * RECORDS)
    return sums


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_model_lets_a_record_count_for_more_than_the_clip(
    kind: type[Base], make_plan: Any, device: str
) -> None:
    """One record exchanged for another, with the same noise: twice the clip at most."""
    torch.manual_seed(0)
    model = kind()
    try:
        held = records(device=device)
        sums = all_released(BatchedEngine, model, make_plan, held, exchanged=(1e3, -1e3))
    except InputError:  # it showed on made-up records
        return
    for other in sums[1:]:
        assert float((sums[0] - other).norm(dim=1).max()) <= 2 * CLIP * 1.001


@pytest.mark.parametrize(
    "loss", [hard_negatives, in_a_window, pytest.param(remembered, marks=COPIES)]
)
def test_no_loss_lets_a_record_count_for_more_than_the_clip(
    loss: Any, make_plan: Any, device: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 3))
    held = records(device=device)
    sums = all_released(BatchedEngine, model, make_plan, held, loss, exchanged=(1e3, -1e3))
    for other in sums[1:]:
        assert float((sums[0] - other).norm(dim=1).max()) <= 2 * CLIP * 1.001


class Raises(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        if float(x.max()) > RARE:
            raise ValueError(f"this record has {float(x.max())}")
        return h


class Ends(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        if float(x.max()) > RARE:
            import os
            import signal

            os.kill(os.getppid(), signal.SIGKILL)
        return h


@COPIES
@pytest.mark.parametrize(("kind", "engine"), [(Raises, ReferenceEngine), (Ends, BatchedEngine)])
def test_a_record_that_a_model_fails_at_contributes_nothing(
    kind: type[Base], engine: Any, make_plan: Any, capfd: Any
) -> None:
    torch.manual_seed(0)
    model = kind()
    whole, without = (released(engine, model, make_plan, records(x)) for x in (None, 1e3))
    assert 0 < float((whole - without).norm(dim=1).max()) <= CLIP * 1.001
    assert capfd.readouterr().out == ""


class Recurrent(nn.Module):
    """It makes a tensor of its own, of 32 bits whatever it is run in."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.layer, self.last = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        start = torch.zeros(1, len(x), 5, device=x.device)
        return self.last(self.layer(self.words(x), start)[0][:, -1])


READERS: list[tuple[Callable[[], nn.Module], int]] = [
    (Recurrent, 7),
    (lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(4 * WIDTH, 3)), -(2**40)),
]


@pytest.mark.parametrize("engine", [BatchedEngine, ReferenceEngine])
@pytest.mark.parametrize(("reader", "token"), READERS)
def test_a_token_that_no_table_has_costs_its_own_record_alone(
    reader: Any, token: int, engine: Any, make_plan: Any, device: str
) -> None:
    torch.manual_seed(0)
    model = reader()
    tokens = np.random.default_rng(0).integers(0, 7, (RECORDS, WIDTH))
    sums = []
    for fourth in (token, 3):
        tokens[3, 1] = fourth
        held = ClientRecords(
            tokens.copy(),
            np.arange(RECORDS) % 3,
            indices=np.arange(RECORDS),
            offsets=np.array([0, RECORDS]),
            device=device,
        )
        sums.append(released(engine, model, make_plan, held))
    assert 0 < float((sums[0] - sums[1]).norm(dim=1).max()) <= CLIP * 1.001


class Plain(nn.Module):
    """What most people write: known operations, in a class of their own."""

    def __init__(self, wide: int = 12) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, wide, 3, padding=1)
        self.two = nn.Sequential(nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU())
        self.last = nn.Linear(wide * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.one(x)), 2)
        x = F.avg_pool2d(x + self.two(x), 2)
        return self.last(x.view(-1, x.size(1) * 16))


class Numbers(Base):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h if float(x.sum()) > 0 else -h


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def vectors(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))


def words(count: int) -> Tensor:
    return torch.randint(7, (count, 6), generator=torch.Generator().manual_seed(1))


def cifar() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(),
        nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(512, 20), nn.Tanh(), nn.Linear(20, 5),
    )  # fmt: skip


WAYS: list[tuple[Callable[[], nn.Module], Callable[[int], Tensor], str, float]] = [
    (lambda: nn.Linear(WIDTH, 3), vectors, "stacked", 1e18),
    (cifar, images, "stacked", 1.0),
    (Plain, images, "stacked", 1e18),
    (Recurrent, words, "vmap", 1.0),
    (RobustlyScaled, vectors, "vmap", 1e18),
    pytest.param(Numbers, vectors, "process", 1.0, marks=COPIES),
]


@pytest.mark.parametrize(("model", "inputs", "way", "scale"), WAYS)
def test_a_record_adds_the_same_bits_beside_any_others(
    model: Any, inputs: Any, way: str, scale: float, device: str
) -> None:
    """Alone, in batches of every size, at any place, beside what overflows, at hostile weights."""
    torch.manual_seed(0)
    count = 5 if way == "process" else 35  # more than the 32 of a pass
    x, y = inputs(count).to(device), torch.arange(count, device=device) % 3
    isolated = IsolatedModel(model().to(device), cross_entropy, x[:3], y[:3])
    # Where a GPU's convolutions depend on what is beside a record, nothing is shared.
    slower = {"vmap", "loop"} if device == "cuda" and way == "stacked" else set()
    assert isolated.path.kind in {way, *slower}
    start = isolated.layout.flatten(model()).to(device)
    start = scale * torch.randn(start.shape, generator=torch.Generator().manual_seed(4)).to(start)
    lattice, rng = Lattice(1.0, 1.0), np.random.default_rng(0)
    if x.is_floating_point():
        x[1], x[2], x[4] = float("nan"), 3e38, 1e-40

    def total(rows: Any) -> Tensor:
        gather = lambda at: (x[torch.as_tensor(at)], y[torch.as_tensor(at)])  # noqa: E731
        rows = np.asarray(rows, dtype=np.int64)
        return isolated.clipped_sum(start, lattice, rows, gather, 32)

    own = [total([row]) for row in range(count)]
    assert max(float(one.double().norm()) for one in own) <= lattice.bound
    for size in {1, 2, 3, 5, 31, 33, count} & set(range(count + 1)):
        rows = rng.permutation(count)[:size]
        assert torch.equal(total(rows), torch.stack([own[row] for row in rows]).sum(0))
    losses = isolated.losses(start, x, y)
    alone = torch.cat([isolated.losses(start, x[i : i + 1], y[i : i + 1]) for i in range(count)])
    assert torch.equal(losses.nan_to_num(-1), alone.nan_to_num(-1))


def test_known_operations_in_a_class_of_ones_own_are_the_models() -> None:
    torch.manual_seed(0)
    x, y = images(8), torch.arange(8) % 3
    model = Plain()
    fast, slow = (
        IsolatedModel(model, cross_entropy, x, y, shared=shared) for shared in (True, False)
    )
    weights, lattice = fast.layout.flatten(model), Lattice(1.0, 1.0)
    gather = lambda at: (x[at], y[at])  # noqa: E731
    one, other = (
        way.clipped_sum(weights, lattice, np.arange(8), gather, 8) for way in (fast, slow)
    )
    assert float((one - other).abs().max()) < 2e-5 * lattice.bound
    assert "side by side" in fast.how
    assert "each alone, about" in slow.how


@pytest.mark.parametrize(
    "between",
    [
        lambda h, x: h / h.amax(),
        lambda h, x: h - h.mean(0),
        lambda h, x: F.softmax(h, 0),
        lambda h, x: torch.cat([h, h.flip(0)], 1)[:, :5],
        lambda h, x: h + h.mean(1),
        lambda h, x: h[0:1] + h,
        lambda h, x: h.transpose(0, 1).contiguous().view(x.size(0), -1),
        lambda h, x: torch.where(h > 0, h, h.sum()),
        lambda h, x: h.reshape(5, -1).reshape(-1, 5) * h.new_ones(()),
        lambda h, x: F.dropout(h, 0.0),
    ],
)
def test_what_is_not_known_to_keep_records_apart_is_not_shared(between: Any) -> None:
    class Own(Base):
        def between(self, h: Tensor, x: Tensor) -> Tensor:
            return between(h, x)

    x, y = vectors(3), torch.arange(3)
    isolated = IsolatedModel(Own(), cross_entropy, x, y)
    assert isolated.path.kind != "stacked", isolated.path.reason


@COPIES
def test_memory_that_nobody_wrote_to_is_not_read() -> None:
    class Reads(Base):
        def between(self, h: Tensor, x: Tensor) -> Tensor:
            return h + torch.empty_like(h).clamp(0, 1)

    x, y = vectors(3), torch.arange(3)
    isolated = IsolatedModel(Reads(), cross_entropy, x, y)
    assert isolated.path.kind == "process"
    assert "memory that nothing was written to" in isolated.path.reason


def test_outputs_of_an_encoder_are_those_of_one_record() -> None:
    class Mixes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / x.abs().amax().clamp(min=RARE)

    x = vectors(200)
    outputs = IsolatedOutputs(Mixes(), x[:1])
    before = outputs(x)
    x[7] = 1e6
    others = torch.arange(200) != 7
    assert torch.equal(outputs(x)[others], before[others])
    assert torch.allclose(before[others], x[others] / RARE)
    tokens = torch.randint(5, (50, 3))
    tokens[11, 0] = 99
    found = IsolatedOutputs(nn.Sequential(nn.Embedding(5, 2), nn.Flatten()), tokens[:1])(tokens)
    assert found.isnan().any(1).nonzero().tolist() == [[11]]


def test_without_processes_such_a_model_is_refused(monkeypatch: Any) -> None:
    monkeypatch.delattr("os.fork")
    x, y = vectors(3), torch.arange(3)
    with pytest.raises(InputError, match=r"a process of its own .*os\.fork"):
        IsolatedModel(Numbers(), cross_entropy, x, y)


def test_a_record_that_does_not_end_counts_for_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr("dpcohort.models._each_alone._ALLOWED_SECONDS", 1)

    def on(device: torch.device) -> Callable[..., Tensor]:
        def single(x: Tensor) -> Tensor:
            while float(x.sum()) > RARE:
                pass
            return x

        return single

    alone = EachAlone(on, [], [torch.zeros(2, 1)], like=torch.zeros(1), what="a loop")
    assert alone.kind == "process"
    found = alone([], [torch.tensor([[1.0], [100.0], [2.0]])])
    assert found[:, 0].nan_to_num(-1).tolist() == [1.0, -1.0, 2.0]


def test_a_model_that_fails_on_made_up_records_says_where() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError("by nothing")

    model = nn.Sequential(nn.Linear(WIDTH, 3), Fails())
    one = records()
    with pytest.raises(InputError, match=r"the layer '1' \(Fails\) fails: ZeroDivisionError"):
        ClippedNetwork(model, cross_entropy, *one.gather(np.arange(3)))

# SPDX-License-Identifier: Apache-2.0
"""Small plans, data and networks for the tests of the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort.accounting._samplers import sampler_of
from dpcohort.engine import ClientRecords, ClippedNetwork, Experiment, Streams
from dpcohort.planning._noise import DistributedNoise, LocalNoise


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: Any) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU: there is no CUDA here")
    return str(request.param)


def final(engine: Any) -> Tensor:
    """The parameters that a training ends with."""
    state = engine.initial_states()[0]
    for _ in engine.rounds([state]):
        pass
    return state.parameters


def stand_in_plan(
    sizes: list[int],
    cohorts: list[list[int]],
    *,
    batch_size: int = 4,
    local_steps: int = 1,
    clip: float = 0.5,
    sampler: str = "poisson",
    noise: list[float] | None = None,
    weights: list[float] | None = None,
    share: Any = 0.4,
    honest: int = 1,
) -> Any:
    """The parts of a plan that engines read; with weights, the noise is distributed."""
    count = np.array(sizes, dtype=np.int64)
    columns: dict[str, Any] = {"lifted": np.zeros(count.shape, dtype=np.bool_)}
    if weights is not None:
        shares = np.array(np.broadcast_to(share, count.shape), dtype=np.float64)
        noise = noise or list(np.sqrt(honest) * shares * batch_size / np.array(weights))
        columns["pool"] = SimpleNamespace(
            weights=np.array(weights), shares=shares, share=shares, honest=honest
        )
    columns["multipliers"] = np.array(noise if noise is not None else [0.7] * len(sizes))
    return SimpleNamespace(
        noise=LocalNoise(**columns) if weights is None else DistributedNoise(**columns),
        training=SimpleNamespace(
            rounds=len(cohorts), cohort_size=len(cohorts[0]), local_steps=local_steps, clip=clip
        ),
        schedule=SimpleNamespace(cohorts=np.array(cohorts, dtype=np.int64)),
        contract=SimpleNamespace(sampler=sampler_of(sampler)),
        population=SimpleNamespace(
            sizes=count,
            epsilon=np.full(count.shape, 1.0),
            ids=[f"client-{k}" for k in range(len(sizes))],
        ),
        noise_multipliers=columns["multipliers"].copy(),
        batch_sizes=np.full(len(sizes), batch_size, dtype=np.int64),
        sampling_rates=batch_size / count,
    )


@pytest.fixture
def make_plan() -> Callable[..., Any]:
    return stand_in_plan


@pytest.fixture
def make_records() -> Callable[..., ClientRecords]:
    def build(
        inputs: Tensor, sizes: list[int], *, classes: int = 3, dtype: torch.dtype = torch.float64,
        device: str = "cpu",
    ) -> ClientRecords:  # fmt: skip
        rng = np.random.default_rng(5)
        rows = inputs.shape[0]
        return ClientRecords(
            inputs,
            rng.integers(0, classes, rows),
            indices=rng.permutation(rows)[: sum(sizes)],
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            dtype=dtype,
            device=device,
        )

    return build


def seeded(plan: Any, records: ClientRecords, seed: int, **options: Any) -> Experiment:
    """An experiment whose randomness comes from a seed."""
    return Experiment(plan=plan, records=records, streams=Streams.seeded(seed), **options)


class Words(nn.Module):
    """Embedding, positions, layer norm: the shape of a small text model."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6, padding_idx=0)
        self.mix = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.norm(self.mix(self.words(tokens)))).mean(1)
        return torch.as_tensor(self.out(hidden))


class Recurrent(nn.Module):
    """A GRU, which vmap cannot map."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(4, 3, batch_first=True)
        self.out = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.out(self.memory(inputs)[0][:, -1]))


class Bare(nn.Module):
    """A parameter used twice, and directly."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.out = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.out(torch.tanh(inputs @ self.weight.t() @ self.weight)))


class Twice(nn.Module):
    """A layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.out(torch.tanh(self.layer(torch.tanh(self.layer(inputs))))))


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


def _networks() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]]:
    """Name: how to build it, the shape of one input (empty: tokens), the path it must take."""
    return {
        "linear": (lambda: nn.Linear(4, 3), (4,), "stacked"),
        "mlp": (
            lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
            (4,),
            "stacked",
        ),
        "positions-direct": (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)),
            (6, 4),
            "stacked",
        ),
        "positions-gram": (
            lambda: nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Flatten(), nn.Linear(40, 3)),
            (2, 30),
            "stacked",
        ),
        "conv2d": (
            lambda: nn.Sequential(
                nn.Conv2d(2, 3, 3, padding=1, stride=2),
                nn.ReLU(),
                nn.Conv2d(3, 4, 2, dilation=2, bias=False),
                nn.Tanh(),
                nn.Flatten(),
                nn.Linear(16, 3),
            ),
            (2, 8, 8),
            "stacked",
        ),
        "conv2d-wide": (
            lambda: nn.Sequential(
                nn.Conv2d(6, 3, 3, padding="same"),
                nn.MaxPool2d(2),
                nn.Tanh(),
                nn.Conv2d(3, 40, 3),
                nn.Flatten(),
                nn.Linear(40 * 4, 3),
            ),
            (6, 8, 8),
            "stacked",
        ),
        "conv1d": (
            lambda: nn.Sequential(
                nn.Conv1d(2, 6, 3, padding=1, stride=2),
                nn.Tanh(),
                nn.Conv1d(6, 4, 2),
                nn.Flatten(),
                nn.Linear(12, 3),
            ),
            (2, 8),
            "stacked",
        ),
        "group-norm": (
            lambda: nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
            ),
            (1, 6, 6),
            "stacked",
        ),
        "words": (Words, (), "stacked"),
        "frozen": (_half_frozen, (4,), "stacked"),
        "depthwise": (
            lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 3)),
            (2, 6, 6),
            "vmap",
        ),
        "bare": (Bare, (4,), "vmap"),
        "twice": (Twice, (4,), "vmap"),
        "tied": (_tied, (4,), "vmap"),
        "recurrent": (Recurrent, (5, 4), "loop"),
    }


def _half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].requires_grad_(requires_grad=False)
    return model


NETWORKS = _networks()


@pytest.fixture(params=list(NETWORKS))
def network(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Every kind of layer in turn: a model, 60 inputs for it, and the path it must take."""
    build, shape, path = NETWORKS[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build().double()
        tokens = torch.randint(0, 9, (60, 7))
        inputs = torch.randn(60, *shape, dtype=torch.float64) if shape else tokens
    return SimpleNamespace(name=request.param, model=model, inputs=inputs, path=path)


@pytest.fixture
def squared_norms() -> Callable[..., Tensor]:
    """Squared gradient norm of each example [draws, width], as the fast path has it if it can."""

    @torch.no_grad()
    def norms(net: ClippedNetwork, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        if net.path.kind == "stacked":
            found = net._pass(weights, inputs, targets)
            net._release()
            return found
        per_group = len(inputs) // len(weights)
        return torch.stack([
            net.gradients(weights[draw // per_group], inputs[draw], targets[draw]).square().sum(1)
            for draw in range(len(inputs))
        ])  # fmt: skip

    return norms

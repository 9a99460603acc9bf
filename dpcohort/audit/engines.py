# SPDX-License-Identifier: Apache-2.0
"""dpcohort's own engines, wrapped so that the privacy tests can look at them from outside.

The model is linear and its loss is its output, so the gradient of a record is its input. Its
parameters lie in two layers, so that clipping layer by layer would show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import FloatArray, IntArray, choice
from dpcohort.aggregation import AggregationRule, Cohort, Mean
from dpcohort.audit.claims import Claim
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    ConstantStep,
    EngineState,
    Optimiser,
    ReferenceEngine,
    RoundRecord,
    Streams,
)

__all__ = ["EngineUnderTest", "GradientProbe", "StepPlan"]


@dataclass(frozen=True, kw_only=True)
class _Settings:
    rounds: int
    cohort_size: int
    local_steps: int
    clip: float


@dataclass(frozen=True)
class _Cohorts:
    cohorts: IntArray


@dataclass(frozen=True)
class _Sampler:
    sampler: str


@dataclass(frozen=True)
class _Sizes:
    sizes: IntArray


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The least a plan can be: every client the same, cohorts and noise as told."""

    training: _Settings
    schedule: _Cohorts
    contract: _Sampler
    population: _Sizes
    noise_multipliers: FloatArray
    batch_sizes: IntArray
    sampling_rates: FloatArray

    @classmethod
    def of(
        cls, claim: Claim, *, cohorts: IntArray, size: int, batch_size: int, local_steps: int
    ) -> StepPlan:
        """A plan under which each client has ``size`` records."""
        clients = int(cohorts.max()) + 1
        return cls(
            training=_Settings(
                rounds=cohorts.shape[0],
                cohort_size=cohorts.shape[1],
                local_steps=local_steps,
                clip=claim.clip,
            ),
            schedule=_Cohorts(cohorts),
            contract=_Sampler(claim.sampler),
            population=_Sizes(np.full(clients, size, dtype=np.int64)),
            noise_multipliers=np.full(clients, claim.noise_multiplier),
            batch_sizes=np.full(clients, batch_size, dtype=np.int64),
            sampling_rates=np.full(clients, batch_size / size),
        )


class _BareProduct(nn.Module):
    """A product with a parameter that is in no layer known to the engines."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimension))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs * self.weight).sum(1, keepdim=True)


class GradientProbe(nn.Module):
    """A linear model in two layers whose gradient, under ``output_itself``, is its input.

    Args:
        dimension: number of parameters, at least 2.
        raw: hold the second half as a bare parameter, which no fast path covers.
    """

    def __init__(self, dimension: int, *, raw: bool = False) -> None:
        super().__init__()
        self._half = dimension // 2
        self.first = nn.Linear(self._half, 1, bias=False)
        rest = dimension - self._half
        self.second = _BareProduct(rest) if raw else nn.Linear(rest, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum of both layers' outputs, [rows, 1]."""
        head, tail = inputs[:, : self._half], inputs[:, self._half :]
        output: Tensor = self.first(head) + self.second(tail)
        return output


def output_itself(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is the output, so that gradients are inputs."""
    return outputs[:, 0]


class _Engine(Protocol):
    def initial_state(self) -> EngineState: ...
    def rounds(self, state: EngineState) -> Iterator[RoundRecord]: ...


class _Watch:
    """An aggregation rule that keeps what it is given and leaves the model where it is."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        self.seen.append(updates.clone())
        return torch.zeros_like(updates[0])


class EngineUnderTest:
    """A ``PrivateTraining`` that is one of dpcohort's engines, in 64 bits.

    Args:
        kind: ``reference`` or ``batched``.
        raw: test the path of models that have no fast one.
        slots_per_pass: of the batched engine; None is its default.
        merged_noise: with one noise vector a round for all last local steps. What is shown is then
            the mean of each round, [rounds, 1, D]: single updates are nobody's business there.
        device: where it trains, ``cpu`` or ``cuda``: an accelerator has noise of its own.

    Example:
        >>> training = EngineUnderTest("reference")
        >>> training(np.zeros((2, 4)), claim=Claim(sampler="fixed"), batch_size=1, seed=0,
        ...          cohorts=np.zeros((3, 2), dtype=np.int64)).shape
        (3, 2, 4)
    """

    def __init__(
        self,
        kind: Literal["reference", "batched"],
        *,
        raw: bool = False,
        slots_per_pass: int | None = None,
        merged_noise: bool = False,
        device: str = "cpu",
    ) -> None:
        choice("kind", kind, ["reference", "batched"])
        self._merged_noise, self._device = merged_noise, device
        self._kind, self._raw, self._slots_per_pass = kind, raw, slots_per_pass

    def __call__(
        self,
        gradients: FloatArray,
        *,
        claim: Claim,
        batch_size: int,
        seed: int,
        cohorts: IntArray,
        local_steps: int = 1,
    ) -> FloatArray:
        """Updates [rounds, draws, D], or means [rounds, 1, D]; the step size is 1."""
        size, dimension = gradients.shape
        plan = StepPlan.of(
            claim, cohorts=cohorts, size=size, batch_size=batch_size, local_steps=local_steps
        )
        clients = plan.population.sizes.size
        records = ClientRecords(
            gradients,
            np.zeros(size, dtype=np.int64),
            indices=np.tile(np.arange(size), clients),
            offsets=np.arange(clients + 1) * size,
            dtype=torch.float64,
            device=self._device,
        )
        watch = _Watch()
        rule = Mean() if self._merged_noise else watch
        engine = self._engine(plan, GradientProbe(dimension, raw=self._raw), records, seed, rule)
        state = engine.initial_state()
        models = [state.parameters.clone()]
        for _ in engine.rounds(state):
            models.append(state.parameters.clone())
        if self._merged_noise:
            moved: FloatArray = -torch.stack(models).diff(dim=0).cpu().numpy()
            return moved[:, None]
        seen: FloatArray = torch.stack(watch.seen).cpu().numpy()
        return seen

    def _engine(
        self, plan: StepPlan, model: nn.Module, records: ClientRecords, seed: int,
        aggregation: AggregationRule,
    ) -> _Engine:  # fmt: skip
        streams, optimiser = Streams.seeded(seed), Optimiser(local_step=ConstantStep(1.0))
        if self._kind == "reference":
            return ReferenceEngine(
                plan, model, records, streams=streams, optimiser=optimiser,
                aggregation=aggregation, loss=output_itself, merged_noise=self._merged_noise,
            )  # fmt: skip
        return BatchedEngine(
            plan, model, records, streams=streams, optimiser=optimiser, aggregation=aggregation,
            loss=output_itself, slots_per_pass=self._slots_per_pass,
            merged_noise=self._merged_noise,
        )  # fmt: skip

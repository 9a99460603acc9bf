# SPDX-License-Identifier: Apache-2.0
"""dpcohort's own engines, wrapped so that the privacy tests can look at them from outside.

The model is linear and its loss is its output, so the gradient of a record is its input. Its
parameters lie in two layers, so that clipping layer by layer would show. Hostile models have the
same gradients and arithmetic that breaks down on the way there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    Streams,
)
from dpcohort.round_record import RoundRecord

__all__ = [
    "HOSTILE",
    "EngineUnderTest",
    "GradientProbe",
    "StepPlan",
    "hostile_factors",
    "hostile_start",
]

#: What can be hostile in a model.
HOSTILE = (
    "no gradient at zero",
    "factors out of range",
    "weights of 1e38",
    "weights that are not numbers",
)
_FACTOR = 2.0**76  # a number divided by it has a square below all 32-bit floats


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
        hostile: one of ``HOSTILE``. With *no gradient at zero* a record of zeros has a pass that
            is not finite, so a broken record cannot be replaced by zeros. With *factors out of
            range* inputs are made smaller and outputs enlarged as much: products have the right
            size, squares of their factors do not. Weights are for the caller to set.
    """

    def __init__(self, dimension: int, *, raw: bool = False, hostile: str | None = None) -> None:
        super().__init__()
        self._hostile = hostile
        self._half = dimension // 2
        self.first = nn.Linear(self._half, 1, bias=False)
        rest = dimension - self._half
        self.second = _BareProduct(rest) if raw else nn.Linear(rest, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum of both layers' outputs, [rows, 1]."""
        inputs, outer = hostile_factors(inputs, self._hostile)
        head, tail = inputs[:, : self._half], inputs[:, self._half :]
        output: Tensor = (self.first(head) + self.second(tail)) * outer
        return output


def hostile_factors(inputs: Tensor, hostile: str | None) -> tuple[Tensor, Tensor | float]:
    """What a probe's inputs [rows, D] become, and the factor on its output; in all, factor 1."""
    if hostile == "no gradient at zero":
        sizes = inputs.abs().sum(1, keepdim=True)
        return inputs, sizes / sizes
    if hostile == "factors out of range":
        return inputs / _FACTOR, _FACTOR
    return inputs, 1.0


def hostile_start(hostile: str | None) -> float:
    """The weight that all parameters of a probe start at."""
    return {"weights of 1e38": 1e38, "weights that are not numbers": np.nan}.get(hostile or "", 0.0)


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
    """A ``PrivateTraining`` that is one of dpcohort's engines.

    Args:
        kind: ``reference`` or ``batched``.
        raw: test the path of models that have no fast one.
        draws_per_pass: of the batched engine; None is its default.
        merged_noise: with one noise vector a round for all last local steps. What is shown is then
            the mean of each round, [rounds, 1, D]: single updates are nobody's business there.
        device: where it trains, ``cpu`` or ``cuda``: an accelerator has noise of its own.
        private: take batches and noise from the operating system, as a deployment does, and not
            from the seed.
        dtype: in which it trains; 64 bits show single faults best, deployments have 32.
        hostile: what is hostile in the model, one of ``HOSTILE``; None for nothing.

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
        draws_per_pass: int | None = None,
        merged_noise: bool = False,
        device: str = "cpu",
        private: bool = False,
        dtype: torch.dtype = torch.float64,
        hostile: str | None = None,
    ) -> None:
        choice("kind", kind, ["reference", "batched"])
        if hostile is not None:
            choice("hostile", hostile, HOSTILE)
        self._private, self._dtype, self._hostile = private, dtype, hostile
        self._merged_noise, self._device = merged_noise, device
        self._kind: Literal["reference", "batched"] = kind
        self._raw, self._draws_per_pass = raw, draws_per_pass

    @property
    def hostile(self) -> Mapping[str, EngineUnderTest]:
        """The same engine on hostile models, by what is hostile."""
        return {
            name: EngineUnderTest(
                self._kind, raw=self._raw, draws_per_pass=self._draws_per_pass,
                merged_noise=self._merged_noise, device=self._device, private=self._private,
                dtype=self._dtype, hostile=name,
            )
            for name in HOSTILE
            if self._hostile is None
        }  # fmt: skip

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
            dtype=self._dtype,
            device=self._device,
        )
        watch = _Watch()
        rule = Mean() if self._merged_noise else watch
        model = GradientProbe(dimension, raw=self._raw, hostile=self._hostile).to(self._dtype)
        for parameter in model.parameters():  # from 0 nothing is rounded on the way to an update
            nn.init.zeros_(parameter)
        engine = self._engine(plan, model, records, seed, rule)
        state = engine.initial_state()
        if self._hostile is not None:  # weights that a model comes to, not weights it is made with
            state.parameters.fill_(hostile_start(self._hostile))
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
        streams = Streams.from_entropy() if self._private else Streams.seeded(seed)
        optimiser = Optimiser(local_step=ConstantStep(1.0))
        if self._kind == "reference":
            return ReferenceEngine(
                plan, model, records, streams=streams, optimiser=optimiser,
                aggregation=aggregation, loss=output_itself, merged_noise=self._merged_noise,
            )  # fmt: skip
        return BatchedEngine(
            plan, model, records, streams=streams, optimiser=optimiser, aggregation=aggregation,
            loss=output_itself, draws_per_pass=self._draws_per_pass,
            merged_noise=self._merged_noise,
        )  # fmt: skip

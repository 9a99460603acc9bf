# SPDX-License-Identifier: Apache-2.0
"""One training to be run, alone or side by side with others, and what it reads of its plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from dpcohort._validate import FloatArray, IntArray
from dpcohort.aggregation import AggregationRule, Cohort, Mean
from dpcohort.engine.merged_noise import MergedMean, refuse_unmergeable
from dpcohort.engine.randomness import Streams, noise_std
from dpcohort.engine.records import ClientRecords
from dpcohort.engine.rounds import Optimiser, ServerStep
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from dpcohort.accounting import Contract
    from dpcohort.clients import Population
    from dpcohort.schedule import Schedule
    from dpcohort.training import Training

__all__ = [
    "Experiment",
    "TrainingPlan",
    "cohort_of",
    "draw_numbers",
]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What may differ between experiments that run side by side.

    Attributes:
        plan: cohorts, noise, clip, sampler.
        records: the clients' data.
        streams: where batches and noise come from.
        optimiser: step sizes, momentum, average.
        aggregation: how updates are combined.
        initial: initial parameters [D]; None takes the model's own.
        merged_noise: draw the noise of all last local steps of a round as one vector, of the same
            law (``merged_noise``). Only in simulation, and only with the plain mean.
    """

    plan: TrainingPlan
    records: ClientRecords
    streams: Streams
    optimiser: Optimiser = field(default_factory=Optimiser)
    aggregation: AggregationRule = field(default_factory=Mean)
    initial: Tensor | None = None
    merged_noise: bool = False

    def __post_init__(self) -> None:
        if self.merged_noise:
            refuse_unmergeable(self.streams, self.aggregation)

    @property
    def server_step(self) -> ServerStep:
        """What its server does with updates."""
        combining: AggregationRule = self.aggregation
        if self.merged_noise:
            combining = MergedMean(self.plan, self.optimiser, self.streams)
        return ServerStep(combining, self.optimiser)

    def step_size(self, round: int, step: int) -> float:
        """Of one local step of a round, alpha_{t^g,t^l}."""
        return self.optimiser.step_size(self.plan, round=round, step=step)

    def adds_noise_at(self, step: int) -> bool:
        """Whether a draw has noise of its own in this local step."""
        return not self.merged_noise or step + 1 < self.plan.training.local_steps


class TrainingPlan(Protocol):
    """The part of a plan that training executes; any object with these parts will do."""

    @property
    def training(self) -> Training:
        """Rounds, cohort size, local steps and clip."""
        ...

    @property
    def schedule(self) -> Schedule:
        """All cohorts, [rounds, cohort size] client positions."""
        ...

    @property
    def contract(self) -> Contract:
        """The sampler in force."""
        ...

    @property
    def population(self) -> Population:
        """The clients' sizes."""
        ...

    @property
    def noise_multipliers(self) -> FloatArray:
        """z_k of each client; 0 for public ones."""
        ...

    @property
    def batch_sizes(self) -> IntArray:
        """Public denominator B_k of each client."""
        ...

    @property
    def sampling_rates(self) -> FloatArray:
        """r_k of each client."""
        ...


def draw_numbers(clients: IntArray) -> IntArray:
    """For each draw of a round, how many earlier draws of the round the same client had.

    Example:
        >>> draw_numbers(np.array([4, 2, 4, 4])).tolist()
        [0, 0, 1, 2]
    """
    seen: dict[int, int] = {}
    numbers = np.empty(clients.size, dtype=np.int64)
    for i, client in enumerate(clients.tolist()):
        numbers[i] = seen.get(client, 0)
        seen[client] = seen.get(client, 0) + 1
    return numbers


def cohort_of(plan: TrainingPlan, round: int, clients: IntArray | None = None) -> Cohort:
    """The draws of one round of a plan.

    Args:
        plan: noise, batches and clip.
        round: the round.
        clients: who is drawn; by default whom the plan's schedule draws.

    Raises:
        InputError: the plan has no cohort for the round, or a drawn client has no noise multiplier;
            nothing is computed for it.
    """
    if clients is None:
        if round >= len(plan.schedule.cohorts):
            raise InputError.because(f"the cohort of round {round} is not chosen yet.")
        clients = plan.schedule.cohorts[round]
    clients = np.asarray(clients, dtype=np.int64)
    multipliers = np.asarray(plan.noise_multipliers, dtype=np.float64)[clients]
    if not np.all(np.isfinite(multipliers) & (multipliers >= 0)):
        worst = int(clients[~(np.isfinite(multipliers) & (multipliers >= 0))][0])
        raise InputError(
            f"noise_multipliers[{worst}]",
            given=float(plan.noise_multipliers[worst]),
            allowed="a finite number at least 0 for a client that is drawn",
            next_step="Make the plan again: the schedule and the noise do not belong together.",
        )
    batches = np.asarray(plan.batch_sizes, dtype=np.int64)[clients]
    return Cohort(
        round=round,
        clients=clients,
        draws=draw_numbers(clients),
        noise_multipliers=multipliers,
        batch_sizes=batches,
        noise_stds=noise_std(multipliers, plan.training.clip, batches),
    )

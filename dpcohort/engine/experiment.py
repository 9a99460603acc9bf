# SPDX-License-Identifier: Apache-2.0
"""One training to be run, alone or side by side with others that share its shapes."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dpcohort.aggregation import AggregationRule, Mean
from dpcohort.engine.merged_noise import refuse_unmergeable
from dpcohort.engine.planned import TrainingPlan
from dpcohort.engine.randomness import Streams
from dpcohort.engine.records import ClientRecords
from dpcohort.engine.server import Optimiser

__all__ = ["Experiment"]


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

    def step_size(self, round: int, step: int) -> float:
        """Of one local step of a round, alpha_{t^g,t^l}."""
        return self.optimiser.step_size(self.plan, round=round, step=step)

    def adds_noise_at(self, step: int) -> bool:
        """Whether a draw has noise of its own in this local step."""
        return not self.merged_noise or step + 1 < self.plan.training.local_steps

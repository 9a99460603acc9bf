# SPDX-License-Identifier: Apache-2.0
"""One training to be run, alone or side by side with others that share its shapes."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dpcohort.aggregation import AggregationRule, Mean
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
    """

    plan: TrainingPlan
    records: ClientRecords
    streams: Streams
    optimiser: Optimiser = field(default_factory=Optimiser)
    aggregation: AggregationRule = field(default_factory=Mean)
    initial: Tensor | None = None

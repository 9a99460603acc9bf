# SPDX-License-Identifier: Apache-2.0
"""Engines that execute a plan: ``reference`` to read, ``batched`` to run; both give one model."""

from __future__ import annotations

from dpcohort.engine.batched import BatchedEngine, StackedEngine
from dpcohort.engine.clipping import (
    CLIP_SLACK,
    ClippedNetwork,
    ClippingPath,
    Loss,
    PerExampleGradients,
    clip_factors,
)
from dpcohort.engine.experiment import Experiment, TrainingPlan, draw_numbers
from dpcohort.engine.randomness import Streams, draw_positions
from dpcohort.engine.records import ClientRecords
from dpcohort.engine.reference import ReferenceEngine, cross_entropy
from dpcohort.engine.rounds import (
    Arrived,
    ConstantStep,
    EngineState,
    Evaluator,
    InverseRootStep,
    InverseTimeStep,
    Optimiser,
    ServerStep,
    StepSize,
    Trainer,
    train_rounds,
)

__all__ = [
    "CLIP_SLACK",
    "Arrived",
    "BatchedEngine",
    "ClientRecords",
    "ClippedNetwork",
    "ClippingPath",
    "ConstantStep",
    "EngineState",
    "Evaluator",
    "Experiment",
    "InverseRootStep",
    "InverseTimeStep",
    "Loss",
    "Optimiser",
    "PerExampleGradients",
    "ReferenceEngine",
    "ServerStep",
    "StackedEngine",
    "StepSize",
    "Streams",
    "Trainer",
    "TrainingPlan",
    "clip_factors",
    "cross_entropy",
    "draw_numbers",
    "draw_positions",
    "train_rounds",
]

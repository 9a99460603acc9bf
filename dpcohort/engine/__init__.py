# SPDX-License-Identifier: Apache-2.0
"""Engines that execute a plan: ``reference`` to read, ``batched`` to run; both give one model."""

from __future__ import annotations

from dpcohort.engine.batched import BatchedEngine
from dpcohort.engine.clipping import (
    CLIP_SLACK,
    ClippedNetwork,
    ClippingPath,
    FlatLayout,
    Loss,
    clip_factors,
    cross_entropy,
    per_example_gradients,
)
from dpcohort.engine.experiment import (
    ClientRecords,
    Engine,
    Experiment,
    TrainingPlan,
    draw_numbers,
)
from dpcohort.engine.randomness import Streams, draw_positions
from dpcohort.engine.reference import ReferenceEngine
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
    evaluator_on,
    outputs_on,
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
    "Engine",
    "EngineState",
    "Evaluator",
    "Experiment",
    "FlatLayout",
    "InverseRootStep",
    "InverseTimeStep",
    "Loss",
    "Optimiser",
    "ReferenceEngine",
    "ServerStep",
    "StepSize",
    "Streams",
    "Trainer",
    "TrainingPlan",
    "clip_factors",
    "cross_entropy",
    "draw_numbers",
    "draw_positions",
    "evaluator_on",
    "outputs_on",
    "per_example_gradients",
    "train_rounds",
]

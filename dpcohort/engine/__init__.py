# SPDX-License-Identifier: Apache-2.0
"""Engines that execute a plan: ``reference`` to read, ``batched`` to run; both give one model."""

from __future__ import annotations

from dpcohort.engine.batched import BatchedEngine, StackedEngine
from dpcohort.engine.clipping import ClippedNetwork, ClippingPath, Loss
from dpcohort.engine.evaluation import Evaluation, Evaluator
from dpcohort.engine.experiment import Experiment
from dpcohort.engine.planned import TrainingPlan
from dpcohort.engine.randomness import Streams
from dpcohort.engine.records import ClientRecords
from dpcohort.engine.reference import ReferenceEngine, cross_entropy
from dpcohort.engine.server import (
    ConstantStep,
    InverseRootStep,
    InverseTimeStep,
    Optimiser,
    StepSize,
)
from dpcohort.engine.state import EngineState, RoundRecord

__all__ = [
    "BatchedEngine",
    "ClientRecords",
    "ClippedNetwork",
    "ClippingPath",
    "ConstantStep",
    "EngineState",
    "Evaluation",
    "Evaluator",
    "Experiment",
    "InverseRootStep",
    "InverseTimeStep",
    "Loss",
    "Optimiser",
    "ReferenceEngine",
    "RoundRecord",
    "StackedEngine",
    "StepSize",
    "Streams",
    "TrainingPlan",
    "cross_entropy",
]

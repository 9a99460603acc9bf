# SPDX-License-Identifier: Apache-2.0
"""Engines that execute a plan: ``reference`` to read, ``batched`` to run; both give one model."""

from __future__ import annotations

from dpcohort.engine.batched import BatchedEngine, StackedEngine
from dpcohort.engine.clipping import ClippedNetwork, ClippingPath, Loss
from dpcohort.engine.evaluation import Evaluator
from dpcohort.engine.experiment import Experiment
from dpcohort.engine.planned import TrainingPlan
from dpcohort.engine.randomness import Streams
from dpcohort.engine.records import ClientRecords
from dpcohort.engine.reference import ReferenceEngine, cross_entropy
from dpcohort.engine.rounds import Arrived, ServerStep, Trainer, train_rounds
from dpcohort.engine.server import Optimiser
from dpcohort.engine.state import EngineState
from dpcohort.engine.step_sizes import ConstantStep, InverseRootStep, InverseTimeStep, StepSize

__all__ = [
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
    "ReferenceEngine",
    "ServerStep",
    "StackedEngine",
    "StepSize",
    "Streams",
    "Trainer",
    "TrainingPlan",
    "cross_entropy",
    "train_rounds",
]

# SPDX-License-Identifier: Apache-2.0
"""Engines that execute a plan: ``reference`` to read, ``batched`` to run; both give one model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.engine._batched import BatchedEngine as BatchedEngine
    from dpcohort.engine._experiment import ClientRecords as ClientRecords
    from dpcohort.engine._experiment import Engine as Engine
    from dpcohort.engine._experiment import Experiment as Experiment
    from dpcohort.engine._experiment import draw_numbers as draw_numbers
    from dpcohort.engine._lattice import Lattice as Lattice
    from dpcohort.engine._randomness import Streams as Streams
    from dpcohort.engine._randomness import draw_batches as draw_batches
    from dpcohort.engine._reference import ReferenceEngine as ReferenceEngine
    from dpcohort.engine._rounds import CohortUpdates as CohortUpdates
    from dpcohort.engine._rounds import ConstantStep as ConstantStep
    from dpcohort.engine._rounds import EngineState as EngineState
    from dpcohort.engine._rounds import Evaluator as Evaluator
    from dpcohort.engine._rounds import InverseRootStep as InverseRootStep
    from dpcohort.engine._rounds import InverseTimeStep as InverseTimeStep
    from dpcohort.engine._rounds import Optimiser as Optimiser
    from dpcohort.engine._rounds import ServerStep as ServerStep
    from dpcohort.engine._rounds import StepSize as StepSize
    from dpcohort.engine._rounds import Trainer as Trainer
    from dpcohort.engine._rounds import evaluator_on as evaluator_on
    from dpcohort.engine._rounds import outputs_on as outputs_on
    from dpcohort.engine._rounds import train_rounds as train_rounds
    from dpcohort.engine.clipping import CLIP_SLACK as CLIP_SLACK
    from dpcohort.engine.clipping import ClippedNetwork as ClippedNetwork
    from dpcohort.engine.clipping import ClippingPath as ClippingPath
    from dpcohort.engine.clipping import FlatLayout as FlatLayout
    from dpcohort.engine.clipping import Loss as Loss
    from dpcohort.engine.clipping import can_be_mapped as can_be_mapped
    from dpcohort.engine.clipping import clip_factors as clip_factors
    from dpcohort.engine.clipping import cross_entropy as cross_entropy
    from dpcohort.engine.clipping import per_example_gradients as per_example_gradients

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _batched="BatchedEngine",
    clipping=(
        "CLIP_SLACK ClippedNetwork ClippingPath FlatLayout Loss can_be_mapped clip_factors "
        "cross_entropy per_example_gradients"
    ),
    _experiment="ClientRecords Engine Experiment draw_numbers",
    _lattice="Lattice",
    _randomness="Streams draw_batches",
    _reference="ReferenceEngine",
    _rounds=(
        "CohortUpdates ConstantStep EngineState Evaluator InverseRootStep InverseTimeStep "
        "Optimiser ServerStep StepSize Trainer evaluator_on outputs_on train_rounds"
    ),
)

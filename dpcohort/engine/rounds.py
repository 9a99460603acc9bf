# SPDX-License-Identifier: Apache-2.0
"""The loop of every training: choose, train, combine, step, evaluate; round by round.

Who names the cohorts and who computes their updates is given: a schedule or an adaptive rule, and
an engine on this machine or the clients of a federation. What must happen before a round (count its
draws on disk) is done by whoever chooses; what must happen after it (write it down) by whoever asks
for the next round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpcohort.aggregation import AggregationRule, Cohort, Mean
from dpcohort.aggregation.rule import combine_round
from dpcohort.engine.evaluation import Evaluator
from dpcohort.engine.partial_sums import one_thread_each
from dpcohort.engine.server import Optimiser
from dpcohort.engine.state import EngineState
from dpcohort.round_record import RoundRecord

__all__ = ["Arrived", "ServerStep", "Trainer", "train_rounds"]


@dataclass(frozen=True)
class Arrived:
    """The noisy updates that came of a round.

    Attributes:
        cohort: the draws they are of.
        updates: one row a draw.
    """

    cohort: Cohort
    updates: Tensor


class Trainer(Protocol):
    """Computes the updates of a round, for one training or for several side by side."""

    def updates(
        self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> Sequence[Arrived | None]:
        """What came for each training; None where it is too little to move the model.

        Args:
            parameters: the model [D] that the clients of each training receive.
            cohorts: who is drawn in each.
        """
        ...


@dataclass(frozen=True)
class ServerStep:
    """What the server of one training does with updates: combine them, and step."""

    aggregation: AggregationRule
    optimiser: Optimiser

    def take(self, state: EngineState, arrived: Arrived | None) -> None:
        """Move the model by what came; too little leaves it as it was."""
        if arrived is None:
            state.next_round += 1
            return
        # What goes element by element has the same bits with any number of threads.
        simple = isinstance(self.aggregation, Mean)
        with nullcontext() if simple else one_thread_each():
            combined, state.memory = combine_round(
                self.aggregation, arrived.updates, arrived.cohort, state.memory
            )
        self.optimiser.apply(state, combined)


def train_rounds(
    trainer: Trainer,
    steps: Sequence[ServerStep],
    states: Sequence[EngineState],
    *,
    rounds: int,
    choose: Callable[[int], Sequence[Cohort]],
    saw: Callable[[Sequence[Arrived | None]], None] = lambda arrived: None,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 1,
) -> Iterator[tuple[RoundRecord, ...]]:
    """Do the remaining rounds of trainings side by side; after each, the states are complete.

    Args:
        trainer: computes updates.
        steps: of each training's server.
        states: of each training, all at the same round.
        rounds: how many there are in all.
        choose: names the cohorts of a round, and has counted them when it returns.
        saw: told the updates before they are combined.
        evaluator: test set, None for none.
        evaluate_every: rounds between evaluations; the last round is always evaluated.

    Yields:
        The records of one round, one for each training. Their seconds are those of all together.
    """
    for t in range(states[0].next_round, rounds):
        cohorts = choose(t)
        started = time.perf_counter()
        arrived = trainer.updates([state.parameters for state in states], cohorts)
        saw(arrived)
        for step, state, came in zip(steps, states, arrived, strict=True):
            step.take(state, came)
        if states[0].parameters.is_cuda:
            torch.cuda.synchronize(states[0].parameters.device)
        seconds = time.perf_counter() - started
        due = (t + 1) % evaluate_every == 0 or t + 1 == rounds
        test = evaluator.evaluate if evaluator is not None and due else None
        yield tuple(
            RoundRecord(
                round=t,
                clients=tuple(cohort.clients.tolist()),
                noise_stds=tuple(cohort.noise_stds.tolist()),
                seconds=seconds,
                test=test(state.parameters) if test and came is not None else None,
                test_average=test(state.average)
                if test and came is not None and state.average is not None
                else None,
                lost=came is None,
            )
            for cohort, state, came in zip(cohorts, states, arrived, strict=True)
        )

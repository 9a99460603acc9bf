# SPDX-License-Identifier: Apache-2.0
"""The fast engine: all draws of a cohort at once, and many experiments side by side.

It does what ``reference`` does, with the same batches and the same noise; the two differ by the
rounding of floating-point sums only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from dpcohort._validate import whole_number
from dpcohort.aggregation import AggregationRule, Cohort, Mean
from dpcohort.engine.clipping import ClippingPath, Loss
from dpcohort.engine.draws import DrawRunner
from dpcohort.engine.experiment import Experiment, TrainingPlan, cohort_of
from dpcohort.engine.randomness import Streams
from dpcohort.engine.records import ClientRecords
from dpcohort.engine.reference import cross_entropy
from dpcohort.engine.rounds import Arrived, EngineState, Evaluator, Optimiser, train_rounds
from dpcohort.errors import InputError
from dpcohort.round_record import RoundRecord

__all__ = ["BatchedEngine", "StackedEngine"]


class StackedEngine:
    """Trains several experiments side by side: seeds, rules or settings that share shapes.

    Args:
        model: the module they train; it is not changed.
        experiments: plans, streams and optimisers; as many rounds and local steps each.
        loss: one number an example.
        evaluator: test set, None for none.
        evaluate_every: rounds between evaluations; the last round is always evaluated.
        micro_batch: examples in one pass at most; bounds memory and changes results only by
            rounding.
        workers: draws at a time on a CPU; changes nothing but the time.
        draws_per_pass: draws that share a pass at most; None is 1 on a CPU and as many as fit
            elsewhere.
    """

    def __init__(
        self,
        model: nn.Module,
        experiments: Sequence[Experiment],
        *,
        loss: Loss = cross_entropy,
        evaluator: Evaluator | None = None,
        evaluate_every: int = 1,
        micro_batch: int | None = None,
        workers: int | None = None,
        draws_per_pass: int | None = None,
    ) -> None:
        _check_stack(experiments)
        whole_number("evaluate_every", evaluate_every, at_least=1)
        self._experiments = list(experiments)
        self._model = experiments[0].records.fit(model)
        self._evaluator, self._evaluate_every = evaluator, evaluate_every
        self._rounds = experiments[0].plan.training.rounds
        self._prepared: Sequence[Cohort] | None = None
        self._runner = DrawRunner(
            self._model,
            loss,
            experiments,
            micro_batch=micro_batch,
            workers=workers,
            draws_per_pass=draws_per_pass,
        )
        self._layout = self._runner.networks[0].layout

    @property
    def path(self) -> ClippingPath:
        """How the model's gradients are clipped, and why so."""
        return self._runner.networks[0].path

    @property
    def raw_nonfinite_count(self) -> int:
        """Records left out so far because their gradient was not finite. SENSITIVE.

        It depends on private records and carries no noise: it is for the client's own eyes, in
        a simulation for the developer's, and must not enter a record, a log or a file.
        """
        return sum(network.raw_nonfinite_count for network in self._runner.networks)

    def initial_states(self) -> list[EngineState]:
        """Every experiment before its first round."""
        own = self._layout.flatten(self._model)
        states = []
        for experiment in self._experiments:
            start = own if experiment.initial is None else experiment.initial.to(own)
            if start.shape != own.shape:
                raise InputError(
                    "initial", given=tuple(start.shape), allowed=f"a vector {tuple(own.shape)}"
                )
            states.append(EngineState(start.clone()))
        return states

    def rounds(self, states: Sequence[EngineState]) -> Iterator[tuple[RoundRecord, ...]]:
        """Do the remaining rounds of fixed plans; after each, the states are complete.

        Yields:
            The records of one round, one for each experiment. Their seconds are the stack's.
        """
        if len({state.next_round for state in states}) != 1 or len(states) != len(
            self._experiments
        ):
            raise InputError(
                "states",
                given=[state.next_round for state in states],
                allowed=f"{len(self._experiments)} states at the same round",
            )
        return train_rounds(
            self,
            [experiment.server_step for experiment in self._experiments],
            states,
            rounds=self._rounds,
            choose=self._planned,
            evaluator=self._evaluator,
            evaluate_every=self._evaluate_every,
        )

    def updates(self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]) -> list[Arrived]:
        """The noisy updates of a round of every experiment.

        They lie in memory that the next call uses again. With merged noise they are rows whose sum
        is that of the updates, without the noise of their last steps.
        """
        if self._prepared is not None and _same(self._prepared, cohorts):
            cohorts = self._prepared
        updates, self._prepared = self._runner.updates_and_upcoming(
            parameters, cohorts, lambda: self._upcoming(cohorts[0].round + 1)
        )
        return [Arrived(*pair) for pair in zip(cohorts, updates, strict=True)]

    def _planned(self, t: int) -> list[Cohort]:
        return [cohort_of(experiment.plan, t) for experiment in self._experiments]

    def _upcoming(self, t: int) -> list[Cohort] | None:
        """The cohorts of a round to come, None if they are not known or cannot be done."""
        try:
            return self._planned(t)
        except InputError:  # the round under way can still be done; the next will say what is wrong
            return None


class BatchedEngine:
    """Trains one experiment fast; takes the arguments of ``ReferenceEngine`` and gives its results.

    Args:
        plan: cohorts, noise, clip.
        model: any module whose examples do not mix; its parameters are w_{0,0}.
        records: the clients' data.
        streams: where batches and noise come from.
        optimiser: step sizes, momentum, average.
        aggregation: how updates are combined.
        merged_noise: one noise vector a round for all last local steps, see ``merged_noise``.
        settings: of ``StackedEngine``.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        model: nn.Module,
        records: ClientRecords,
        *,
        streams: Streams,
        optimiser: Optimiser | None = None,
        aggregation: AggregationRule | None = None,
        merged_noise: bool = False,
        **settings: Any,
    ) -> None:
        experiment = Experiment(
            plan=plan,
            records=records,
            streams=streams,
            optimiser=optimiser or Optimiser(),
            aggregation=aggregation or Mean(),
            merged_noise=merged_noise,
        )
        self._stack = StackedEngine(model, [experiment], **settings)

    @property
    def path(self) -> ClippingPath:
        """How the model's gradients are clipped, and why so."""
        return self._stack.path

    @property
    def raw_nonfinite_count(self) -> int:
        """SENSITIVE, see ``StackedEngine.raw_nonfinite_count``."""
        return self._stack.raw_nonfinite_count

    def initial_state(self) -> EngineState:
        """The model as given, before the first round."""
        return self._stack.initial_states()[0]

    def rounds(self, state: EngineState) -> Iterator[RoundRecord]:
        """Do the remaining rounds; after each, ``state`` is complete and its record is yielded."""
        return (record for (record,) in self._stack.rounds([state]))

    def updates(self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]) -> list[Arrived]:
        """See ``StackedEngine.updates``."""
        return self._stack.updates(parameters, cohorts)


def _same(some: Sequence[Cohort], others: Sequence[Cohort]) -> bool:
    return len(some) == len(others) and all(
        a.round == b.round and np.array_equal(a.clients, b.clients)
        for a, b in zip(some, others, strict=True)
    )


def _check_stack(experiments: Sequence[Experiment]) -> None:
    if not experiments:
        raise InputError("experiments", given=[], allowed="at least one")
    first = experiments[0]
    for experiment in experiments:
        experiment.records.check_against(experiment.plan)
        ours, theirs = experiment.plan.training, first.plan.training
        if (ours.rounds, ours.local_steps) != (theirs.rounds, theirs.local_steps):
            raise InputError.because(
                "experiments side by side need as many rounds and local steps each; "
                f"one has {ours.rounds} x {ours.local_steps}, another {theirs.rounds} x "
                f"{theirs.local_steps}."
            )
        if experiment.streams.is_reproducible != first.streams.is_reproducible:
            raise InputError.because(
                "experiments side by side are all simulations with a seed, or all private."
            )
        if not experiment.records.shares_rows_with(first.records):
            raise InputError.because(
                "experiments side by side must read the same stored rows; "
                "use ClientRecords.repartitioned for another partition of them."
            )

# SPDX-License-Identifier: Apache-2.0
"""One adaptive training: before each round the rule decides, then an engine trains the cohort.

::

    session = AdaptiveSession(plan, model, records, streams=streams)
    engine = BatchedEngine(session.plan, model, records, streams=streams,
                           aggregation=session.aggregation)
    for record in adaptive_rounds(engine, [state], [session]): ...

Sessions go side by side on one ``StackedEngine``, with planned experiments among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive.book import Book, Listener
from dpcohort.adaptive.decision import decide, round_view
from dpcohort.adaptive.desk import ReportDesk
from dpcohort.adaptive.live import LivePlan
from dpcohort.adaptive.meter import LossMeter
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.watcher import WatchingAggregation
from dpcohort.aggregation import AggregationRule, Mean
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    EngineState,
    Experiment,
    Loss,
    Optimiser,
    ReferenceEngine,
    RoundRecord,
    StackedEngine,
    Streams,
    cross_entropy,
)
from dpcohort.errors import InputError

__all__ = ["AdaptiveSession", "adaptive_rounds", "adaptive_stack"]


class AdaptiveSession:
    """Decides the cohorts of one training and keeps its book.

    Args:
        plan: caps, terms, noise and the rule.
        model: the module that is trained; it is copied.
        records: the clients' data, for the desk alone.
        streams: where the noise of reports comes from; the engine's own.
        aggregation: how updates are combined.
        loss: one number an example.
        listener: told every entry of the book before it takes effect.
    """

    def __init__(
        self,
        plan: AdaptivePlan,
        model: nn.Module,
        records: ClientRecords,
        *,
        streams: Streams,
        aggregation: AggregationRule | None = None,
        loss: Loss = cross_entropy,
        listener: Listener | None = None,
    ) -> None:
        plan.verify_unless_made_here()
        self.adaptive_plan = plan
        self.book = Book(plan, listener)
        self.plan = LivePlan(plan, self.book)
        self._records, self._streams = records, streams
        meter = LossMeter(model, records, loss=loss)
        self._desk = ReportDesk(plan, self.book, meter, streams=streams)
        inner = aggregation or Mean()
        self._watcher = WatchingAggregation(inner) if plan.rule.watches_updates else None
        self.aggregation: AggregationRule = self._watcher or inner

    @property
    def is_private(self) -> bool:
        """Whether no report was raw and nothing comes from a seed."""
        return not (self.adaptive_plan.has_raw_reports or self._streams.is_reproducible)

    def experiment(
        self, *, optimiser: Optimiser | None = None, initial: Tensor | None = None
    ) -> Experiment:
        """This training for a ``StackedEngine``."""
        return Experiment(
            plan=self.plan,
            records=self._records,
            streams=self._streams,
            optimiser=optimiser or Optimiser(),
            aggregation=self.aggregation,
            initial=initial,
        )

    def decide(self, round: int, parameters: Tensor) -> IntArray:
        """Fix the cohort of a round, unless the book has it: ask, choose, count.

        Args:
            round: the round to come.
            parameters: the model its clients will receive.
        """
        found = self.book.cohort(round)
        if found is not None:
            return found
        view = round_view(
            self.adaptive_plan,
            self.book,
            round,
            self._sketches(),
            repeats=self._streams.is_reproducible,
        )
        cohort = decide(
            self.adaptive_plan, view, lambda asked: self._desk.ask(round, asked, parameters)
        )
        self.book.choose(round, cohort)
        return cohort

    def spent_epsilon(self) -> FloatArray:
        """What is certified for each client so far at its delta; NaN if public.

        At its caps, reports included, once it was heard: see ``counts_to_certify``.
        """
        plan = self.adaptive_plan
        return plan.spent_epsilon(*plan.counts_to_certify(self.book.draws, self.book.reports_made))

    def go_on(
        self,
        entries: Iterable[Mapping[str, Any]],
        arrays: Mapping[str, np.ndarray[Any, Any]],
        listener: Listener | None = None,
    ) -> None:
        """Take over the book and the checkpoint of a run, which may just begin.

        Raises:
            InputError: a run with raw reports cannot go on, for they were never written down.
        """
        found = list(entries)
        if found and self.adaptive_plan.has_raw_reports:
            raise InputError.because(
                "a run with raw reports cannot go on: what clients reported was never written "
                "down. Begin it again in another folder."
            )
        self.book.replay(found)
        if self._watcher is not None:
            self._watcher.take_arrays(arrays)
        if listener is not None:
            self.book.listen(listener)

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """What a checkpoint must hold beside the engine's state: the sketches of updates."""
        return {} if self._watcher is None else self._watcher.to_arrays()

    def _sketches(self) -> dict[int, FloatArray]:
        return {} if self._watcher is None else self._watcher.sketches


def adaptive_rounds(
    engine: BatchedEngine | ReferenceEngine | StackedEngine,
    states: Sequence[EngineState],
    sessions: Sequence[AdaptiveSession | None],
) -> Iterator[tuple[RoundRecord, ...]]:
    """The remaining rounds; before each, every session decides its cohort.

    Args:
        engine: made with the sessions' plans and aggregations.
        states: one for each session.
        sessions: None where an experiment has a plan of fixed cohorts.

    Yields:
        The records of one round, one for each session.
    """
    total = next(s for s in sessions if s is not None).plan.training.rounds
    if isinstance(engine, StackedEngine):
        rounds = engine.rounds(states)
    else:
        rounds = ((record,) for record in engine.rounds(states[0]))
    while states[0].next_round < total:
        for session, state in zip(sessions, states, strict=True):
            if session is not None:
                session.decide(state.next_round, state.parameters)
        yield next(rounds)


def adaptive_stack(
    model: nn.Module,
    sessions: Sequence[AdaptiveSession],
    *,
    optimiser: Optimiser | None = None,
    initial: Sequence[Tensor | None] | None = None,
    **engine_settings: Any,
) -> tuple[StackedEngine, list[EngineState]]:
    """An engine for several sessions side by side, and their first states.

    Args:
        model: the module all train.
        sessions: whose records share rows and whose plans have as many rounds and local steps.
        optimiser: of all.
        initial: initial parameters of each; None takes the model's own.
        engine_settings: of ``StackedEngine``, such as ``evaluator``.
    """
    starts = initial if initial is not None else [None] * len(sessions)
    experiments = [
        session.experiment(optimiser=optimiser, initial=start)
        for session, start in zip(sessions, starts, strict=True)
    ]
    engine = StackedEngine(model, experiments, **engine_settings)
    return engine, engine.initial_states()

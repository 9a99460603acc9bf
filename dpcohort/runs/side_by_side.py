# SPDX-License-Identifier: Apache-2.0
"""Several seeded trainings at once: seeds, rules or settings of one model on one data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dpcohort.adaptive.session import AdaptiveSession
from dpcohort.engine import StackedEngine
from dpcohort.errors import InputError
from dpcohort.runs.job import Job
from dpcohort.runs.recorder import Recorder
from dpcohort.runs.run import Run
from dpcohort.runs.training import refuse_nonfinite

__all__ = ["train_side_by_side"]


def train_side_by_side(
    jobs: Sequence[Job],
    *,
    outs: Sequence[str | Path | None] | None = None,
    on_round: Callable[[int, Sequence[Run]], None] | None = None,
) -> list[Run]:
    """Train all jobs together; each gives the result it would give alone.

    Args:
        jobs: with the same model and data set and as many rounds and local steps.
        outs: a run folder for each, None for those that are not written.
        on_round: told the number of rounds done and all runs, after each round.

    Raises:
        InputError: the jobs do not go together, or a model stopped being finite.
    """
    _check(jobs)
    places = outs if outs is not None else [None] * len(jobs)
    engine, sessions = _engine(jobs)
    states = engine.initial_states()
    recorders: list[Recorder] = []
    try:
        for job, out in zip(jobs, places, strict=True):
            recorders.append(Recorder(job, out))
        for recorder, session in zip(recorders, sessions, strict=True):
            if session is not None:
                recorder.follow(session)
        runs = [recorder.run for recorder in recorders]
        rounds = engine.rounds(states)
        for t in range(jobs[0].plan.training.rounds):
            for recorder, session, state in zip(recorders, sessions, states, strict=True):
                if session is None:
                    recorder.before_round(t)
                else:
                    session.decide(t, state.parameters)
            records = next(rounds)
            for recorder, record, state, job in zip(recorders, records, states, jobs, strict=True):
                refuse_nonfinite(state, job, recorder.run)
                recorder.after_round(record, state)
            if on_round is not None:
                on_round(t + 1, runs)
        for recorder, state in zip(recorders, states, strict=True):
            recorder.finish(state)
    finally:
        for recorder in recorders:
            recorder.close()
    return runs


def _engine(jobs: Sequence[Job]) -> tuple[StackedEngine, list[AdaptiveSession | None]]:
    first = jobs[0].records()
    held = [first if job is jobs[0] else first.repartitioned(job.partition) for job in jobs]
    sessions = [job.session(records) for job, records in zip(jobs, held, strict=True)]
    engine = StackedEngine(
        jobs[0].trained,
        [
            job.experiment(session, records)
            for job, session, records in zip(jobs, sessions, held, strict=True)
        ],
        evaluator=jobs[0].evaluator(),
        evaluate_every=jobs[0].evaluate_every,
    )
    return engine, sessions


def _check(jobs: Sequence[Job]) -> None:
    if not jobs:
        raise InputError("jobs", given=[], allowed="at least one")
    for job in jobs:
        if job.private:
            raise InputError.because(
                "runs side by side are simulations; train a private run alone."
            )
        if job.data is not jobs[0].data or job.evaluate_every != jobs[0].evaluate_every:
            raise InputError.because(
                "runs side by side need the same data set and evaluate as often."
            )
        if job.engine != "batched" or job.device != jobs[0].device:
            raise InputError.because("runs side by side use the batched engine on one device.")

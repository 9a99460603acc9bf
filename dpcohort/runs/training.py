# SPDX-License-Identifier: Apache-2.0
"""``train``: execute a plan, write the run down, survive a crash; several plans side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpcohort.adaptive.plan_file import AnyPlan
from dpcohort.adaptive.session import AdaptiveSession
from dpcohort.aggregation import AggregationRule
from dpcohort.atomic_file import owner_only
from dpcohort.data import Dataset, Partition
from dpcohort.engine import (
    BatchedEngine,
    EngineState,
    Optimiser,
    ReferenceEngine,
    RoundRecord,
    StackedEngine,
)
from dpcohort.errors import DivergedError, InputError
from dpcohort.runs.callbacks import Callback
from dpcohort.runs.job import Job, make_job
from dpcohort.runs.recorder import Recorder
from dpcohort.runs.round_log import RoundLine
from dpcohort.runs.run import Run

__all__ = ["refuse_nonfinite", "run_rounds", "train", "train_job", "train_side_by_side"]


def train(
    plan: AnyPlan,
    model: str | nn.Module,
    data: str | Dataset,
    *,
    partition: Partition | None = None,
    engine: str = "batched",
    optimiser: Optimiser | None = None,
    aggregation: str | AggregationRule = "mean",
    seed: int = 0,
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    callbacks: Iterable[Callback] = (),
    private_entropy: bool = False,
    merged_noise: bool = False,
    model_options: Mapping[str, Any] | None = None,
) -> Run:
    """Execute a plan (Algorithm 1).

    Args:
        plan: cohorts, noise, clip; its dimension must be the model's.
        model: a name for ``build_model``, or a module; a module is not changed.
        data: a data set, or the name of one.
        partition: who holds which records; by default an IID partition of exactly the plan's
            sizes, from the seed.
        engine: ``batched`` or ``reference``.
        optimiser: step sizes, momentum, average of iterates.
        aggregation: how a round's noisy updates are combined: a rule, or the name of one with its
            default settings (``dpcohort rules`` lists them).
        seed: of the initial weights and the default partition, and of batches and noise. Whoever
            knows it can take the noise off again, so receipts say NOT PRIVATE.
        device: ``auto``, ``cpu`` or ``cuda``.
        out: the run folder; without one nothing is written.
        resume: go on with the run in ``out``; it must have been begun with the same settings.
        evaluate_every: rounds between evaluations on the test set; about 20 in all by default.
        checkpoint_every: rounds between checkpoints; about 20 in all by default.
        callbacks: told about every round.
        private_entropy: batches and noise from the operating system's entropy. Cannot be
            reproduced; a round that was counted before a crash is lost, never computed again.
        merged_noise: draw the noise of all last local steps of a round as one vector. The model
            has the same law and comes faster, but single updates then lack noise: in simulation
            only, and with the plain mean only.
        model_options: of a model given by name.

    Returns:
        The finished run.

    Raises:
        InputError: plan, model and data do not belong together, the folder is in use, or the
            model stopped being finite; what was done so far is kept.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[400] * 3, epsilon=[1.0, 4.0, 8.0], delta=1e-5)
        >>> settings = Training(rounds=3, cohort_size=2, batch_size=40, dimension=650)
        >>> plan = make_plan(clients, settings, seed=0)
        >>> run = train(plan, "logistic", "digits", device="cpu")
        >>> run.rounds_done, 0 <= run.test_accuracy <= 1
        (3, True)
    """
    job = make_job(
        plan,
        model,
        data,
        partition=partition,
        engine=engine,
        optimiser=optimiser,
        aggregation=aggregation,
        seed=seed,
        device=device,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        private_entropy=private_entropy,
        merged_noise=merged_noise,
        model_options=model_options,
    )
    return train_job(job, out=out, resume=resume, callbacks=callbacks)


def train_job(
    job: Job,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Run:
    """As ``train``, for a job that is already made."""
    listeners = tuple(callbacks)
    deaf = [listener for listener in listeners if not hasattr(listener, "on_round")]
    if deaf:  # said before anything is counted
        allowed = "objects with a method on_round(record, run)"
        raise InputError("callbacks", given=deaf[0], allowed=allowed)
    session = job.session()
    engine = _engine(job, session)
    with owner_only(job.private):
        part = _Part(job, session, Recorder(job, out, resume=resume))
        with _closing([part]):
            part.begin(engine.initial_state())
            records = ((record,) for record in engine.rounds(part.state))
            run_rounds([part], records, listeners=listeners)
    return part.run


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
    _check_side_by_side(jobs)
    places = outs if outs is not None else [None] * len(jobs)
    engine, sessions = _stacked(jobs)
    parts: list[_Part] = []
    with _closing(parts):
        for job, session, out in zip(jobs, sessions, places, strict=True):
            parts.append(_Part(job, session, Recorder(job, out)))
        for part, state in zip(parts, engine.initial_states(), strict=True):
            part.begin(state)
        rounds = engine.rounds([part.state for part in parts])
        run_rounds(parts, rounds, on_round=on_round)
    return [part.run for part in parts]


class _Part:
    """One of the jobs that a loop trains: who chooses its cohorts, where it stands, its record."""

    def __init__(self, job: Job, session: AdaptiveSession | None, recorder: Recorder) -> None:
        self.job, self.session, self.recorder = job, session, recorder
        #: The last state that was whole: what is kept if the next round fails.
        self.whole: EngineState | None = None

    @property
    def run(self) -> Run:
        return self.recorder.run

    def begin(self, fresh: EngineState) -> None:
        """Go to where the job begins: its start, or the last checkpoint of its folder."""
        self.state = self.recorder.start(fresh)
        if self.session is not None:
            self.recorder.follow(self.session)
        self.whole = self.state.clone()
        _skip_lost(self.recorder, self.state, self.job)
        self.whole = self.state.clone()

    def choose(self) -> None:
        """Name the cohort of the next round, and count it on disk before any of it is computed."""
        if self.session is None:
            self.recorder.before_round(self.state.next_round)
        else:  # counts reports before they are made, and the cohort it comes to
            self.session.decide(self.state.next_round, self.state.parameters)

    def record(self, record: RoundRecord) -> RoundLine:
        """Write a computed round down, unless it left a model that is no longer numbers."""
        refuse_nonfinite(self.state, self.job, self.run)
        if self.run.path is not None:
            self.whole = self.state.clone()
        return self.recorder.after_round(record, self.state)


def run_rounds(
    parts: Sequence[_Part],
    rounds: Iterator[Sequence[RoundRecord]],
    *,
    listeners: Sequence[Callback] = (),
    on_round: Callable[[int, Sequence[Run]], None] | None = None,
) -> None:
    """The loop of every training on one machine: choose, count, compute, check, record.

    Args:
        parts: what is trained, at the same round; one job is the case of one part.
        rounds: computes the next round of all parts when it is asked for it.
        listeners: told about each round of each part.
        on_round: told the number of rounds done and all runs, after each round.
    """
    total = parts[0].job.plan.training.rounds
    while parts[0].state.next_round < total:
        for part in parts:
            part.choose()
        for part, record in zip(parts, next(rounds), strict=True):
            line = part.record(record)
            for listener in listeners:
                listener.on_round(line, part.run)
        if on_round is not None:
            on_round(parts[0].state.next_round, [part.run for part in parts])
    for part in parts:
        part.recorder.finish(part.state)


@contextmanager
def _closing(parts: list[_Part]) -> Iterator[None]:
    """Close the parts' files in the end; after an error keep what is whole."""
    try:
        yield
    except BaseException:
        for part in parts:
            _settle(part)
        raise
    for part in parts:
        part.recorder.close()


def refuse_nonfinite(state: EngineState, job: Job, run: Run) -> None:
    """Stop before a model that is no longer numbers is written anywhere."""
    if bool(torch.isfinite(state.parameters).all()):
        return
    kept = f" The state before that round is kept in {run.path}." if run.path else ""
    raise DivergedError(
        f"round {state.next_round - 1} left the model with numbers that are not finite.{kept} "
        f"Lower the step size, optimiser.learning_rate (now {job.optimiser.local_step}) or "
        f"optimiser.server_learning_rate (now {job.optimiser.server_learning_rate:g}), the clip, "
        f"training.clip (now {job.plan.training.clip:g}), or the noise: it is "
        f"{job.plan.noise_to_clip:.3g} times the clip in each round."
    )


def _engine(job: Job, session: AdaptiveSession | None) -> BatchedEngine | ReferenceEngine:
    kind = ReferenceEngine if job.engine == "reference" else BatchedEngine
    experiment = job.experiment(session)
    return kind(
        experiment.plan,
        job.trained,
        experiment.records,
        streams=experiment.streams,
        optimiser=experiment.optimiser,
        aggregation=experiment.aggregation,
        evaluator=job.evaluator(),
        evaluate_every=job.evaluate_every,
        merged_noise=experiment.merged_noise,
    )


def _skip_lost(recorder: Recorder, state: EngineState, job: Job) -> None:
    """Pass over rounds that a private run counted but did not keep."""
    counted = recorder.run.ledger.rounds
    while job.private and state.next_round in counted:
        lost = state.next_round
        state.next_round += 1
        recorder.lost_round(lost, state)


def _settle(part: _Part) -> None:
    """Keep the last whole state and the receipts; whatever stopped the run is the news."""
    try:
        if part.whole is not None:
            part.recorder.keep(part.whole)
            part.recorder.write_receipts()
    except InputError:
        pass  # the disk that stopped us is still full; the last checkpoint stands
    finally:
        part.recorder.close()


def _stacked(jobs: Sequence[Job]) -> tuple[StackedEngine, list[AdaptiveSession | None]]:
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


def _check_side_by_side(jobs: Sequence[Job]) -> None:
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

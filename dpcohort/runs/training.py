# SPDX-License-Identifier: Apache-2.0
"""``train``: execute a plan, write the run down, survive a crash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpcohort.adaptive.plan_file import AnyPlan
from dpcohort.adaptive.session import AdaptiveSession
from dpcohort.aggregation import AggregationRule
from dpcohort.atomic_file import owner_only
from dpcohort.data import Dataset, Partition
from dpcohort.engine import BatchedEngine, EngineState, Optimiser, ReferenceEngine
from dpcohort.errors import DivergedError, InputError
from dpcohort.runs.callbacks import Callback
from dpcohort.runs.job import Job, make_job
from dpcohort.runs.recorder import Recorder
from dpcohort.runs.run import Run

__all__ = ["refuse_nonfinite", "train", "train_job"]


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
    with owner_only(job.private):
        return _trained(job, out, resume=resume, listeners=listeners)


def _trained(
    job: Job, out: str | Path | None, *, resume: bool, listeners: tuple[Callback, ...]
) -> Run:
    session = job.session()
    engine = _engine(job, session)
    recorder = Recorder(job, out, resume=resume)
    try:
        state = recorder.start(engine.initial_state())
        if session is not None:
            recorder.follow(session)
    except BaseException:
        recorder.close()
        raise
    whole = state.clone()
    try:
        _skip_lost(recorder, state, job)
        whole = state.clone()
        rounds = engine.rounds(state)
        while state.next_round < job.plan.training.rounds:
            if session is None:
                recorder.before_round(state.next_round)
            else:  # counts reports before they are made, and the cohort it comes to
                session.decide(state.next_round, state.parameters)
            record = next(rounds)
            refuse_nonfinite(state, job, recorder.run)
            whole = state.clone()
            line = recorder.after_round(record, state)
            for listener in listeners:
                listener.on_round(line, recorder.run)
    except BaseException:
        _settle(recorder, whole)
        raise
    recorder.finish(state)
    return recorder.run


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


def _settle(recorder: Recorder, whole: EngineState) -> None:
    """Keep the last whole state and the receipts; whatever stopped the run is the news."""
    try:
        recorder.keep(whole)
        recorder.write_receipts()
    except InputError:
        pass  # the disk that stopped us is still full; the last checkpoint stands
    finally:
        recorder.close()

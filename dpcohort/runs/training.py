# SPDX-License-Identifier: Apache-2.0
"""``train``: execute a plan, write the run down, survive a crash; several plans side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpcohort.aggregation import AggregationRule, Cohort
from dpcohort.atomic_file import owner_only
from dpcohort.config import Config
from dpcohort.data import Dataset, Partition
from dpcohort.engine import (
    Arrived,
    BatchedEngine,
    ClientRecords,
    EngineState,
    Evaluator,
    Optimiser,
    ReferenceEngine,
    Trainer,
    train_rounds,
)
from dpcohort.engine.experiment import cohort_of
from dpcohort.errors import DivergedError, DpcohortError, InputError
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord
from dpcohort.runs.chooser import Chooser
from dpcohort.runs.configured import combinations, configured_job
from dpcohort.runs.configured_plan import configured_data
from dpcohort.runs.folder import RunFolder
from dpcohort.runs.job import Job, TrainingJob, make_job
from dpcohort.runs.recorder import Recorder
from dpcohort.runs.run import Callback, Run

__all__ = [
    "Part",
    "closing",
    "folder_name",
    "run_rounds",
    "train",
    "train_grid",
    "train_group",
    "train_job",
    "train_side_by_side",
]


def train(
    plan: Plan,
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
    experiment = job.experiment()
    kind = ReferenceEngine if job.engine == "reference" else BatchedEngine
    engine = kind(job.trained, [experiment])
    with owner_only(job.private):
        part = Part(job, Recorder(job, out, resume=resume))
        with closing([part]):
            part.begin(engine.initial_states()[0], experiment.records)
            run_rounds(
                [part],
                engine,
                evaluator=job.evaluator(),
                evaluate_every=job.evaluate_every,
                listeners=listeners,
            )
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
    first = jobs[0].records()
    held = [first if job is jobs[0] else first.repartitioned(job.partition) for job in jobs]
    engine = BatchedEngine(
        jobs[0].trained,
        [job.experiment(records) for job, records in zip(jobs, held, strict=True)],
    )
    parts: list[Part] = []
    with closing(parts):
        for job, out in zip(jobs, places, strict=True):
            parts.append(Part(job, Recorder(job, out)))
        for part, state, records in zip(parts, engine.initial_states(), held, strict=True):
            part.begin(state, records)
        run_rounds(
            parts,
            engine,
            evaluator=jobs[0].evaluator(),
            evaluate_every=jobs[0].evaluate_every,
            on_round=on_round,
        )
    return [part.run for part in parts]


class Part:
    """One of the trainings that a loop does: what it is, who chooses, where it stands, its record.

    Args:
        job: what is trained.
        recorder: writes it down.
    """

    def __init__(self, job: TrainingJob, recorder: Recorder) -> None:
        self.job, self.recorder = job, recorder
        #: The last state that was whole: what is kept if the next round fails.
        self.whole: EngineState | None = None

    @property
    def run(self) -> Run:
        """What it has given so far."""
        return self.recorder.run

    def begin(self, fresh: EngineState, records: ClientRecords | None = None) -> None:
        """Go to where the training begins: its start, or the last checkpoint of its folder."""
        self.state = self.recorder.start(fresh)
        self.chooser: Chooser = self.job.chooser(self.run.ledger, self.recorder.arrays, records)
        self.recorder.more_arrays = self.chooser.to_arrays
        self.whole = self.state.clone()
        counted = self.run.ledger.rounds
        while not self.job.repeats and self.state.next_round in counted:
            lost = self.state.next_round  # counted before a crash, and never computed again
            self.state.next_round += 1
            self.recorder.lost_round(lost, self.state)
        self.whole = self.state.clone()

    def choose(self, round: int) -> Cohort:
        """Name the cohort of a round, and count it on disk before any of it is computed."""
        clients = self.chooser.cohort(round, self.state.parameters)
        self.recorder.count(round, clients)
        return cohort_of(self.job.plan, round, clients)

    def saw(self, arrived: Arrived | None) -> None:
        """Tell the chooser of updates, which carry their noise."""
        if arrived is not None:
            self.chooser.saw(arrived.cohort.clients, arrived.updates)

    def record(self, record: RoundRecord) -> RoundRecord:
        """Write a computed round down, unless it left a model that is no longer numbers."""
        refuse_nonfinite(self.state, self.job, self.run)
        if self.run.path is not None:
            self.whole = self.state.clone()
        return self.recorder.after_round(record, self.state)


def run_rounds(
    parts: Sequence[Part],
    trainer: Trainer,
    *,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 1,
    listeners: Sequence[Callback] = (),
    on_round: Callable[[int, Sequence[Run]], None] | None = None,
) -> None:
    """Every training: choose, count on disk, train, combine, step, check, write down.

    Args:
        parts: what is trained, at the same round; one training is the case of one part.
        trainer: computes their updates.
        evaluator: test set, None for none.
        evaluate_every: rounds between evaluations.
        listeners: told about each round of each part.
        on_round: told the number of rounds done and all runs, after each round.
    """

    def saw(arrived: Sequence[Arrived | None]) -> None:
        for part, came in zip(parts, arrived, strict=True):
            part.saw(came)

    for records in train_rounds(
        trainer,
        [part.job.server_step for part in parts],
        [part.state for part in parts],
        rounds=parts[0].job.plan.training.rounds,
        choose=lambda round: [part.choose(round) for part in parts],
        saw=saw,
        evaluator=evaluator,
        evaluate_every=evaluate_every,
    ):
        for part, record in zip(parts, records, strict=True):
            line = part.record(record)
            for listener in listeners:
                listener.on_round(line, part.run)
        if on_round is not None:
            on_round(parts[0].state.next_round, [part.run for part in parts])
    for part in parts:
        part.recorder.finish(part.state)


@contextmanager
def closing(parts: list[Part]) -> Iterator[None]:
    """Close the parts' files in the end; after an error keep what is whole."""
    try:
        yield
    except BaseException:
        for part in parts:
            _settle(part)
        raise
    for part in parts:
        part.recorder.close()


def refuse_nonfinite(state: EngineState, job: TrainingJob, run: Run) -> None:
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


def _settle(part: Part) -> None:
    """Keep the last whole state and the receipts; whatever stopped the run is the news.

    A state whose round has no line yet is not kept: the round is done, or asked for, again.
    """
    try:
        if part.whole is not None:
            written = part.run.history[-1].round + 1 if part.run.history else 0
            if part.whole.next_round == written:
                part.recorder.keep(part.whole)
            part.recorder.write_receipts()
    except DpcohortError:
        pass  # the disk that stopped us is still full; the last checkpoint stands
    finally:
        part.recorder.close()


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


Progress = Callable[[str, int, int, Sequence[Run]], None]


def train_grid(
    config: Config,
    *,
    seeds: int = 5,
    out: Path | None = None,
    device: str | None = None,
    on_round: Progress | None = None,
) -> dict[str, list[Run]]:
    """Train all combinations; the runs of one differ only in their seed.

    Args:
        config: with a [grid].
        seeds: runs of each combination; seed i of one and seed i of another start alike.
        out: keep the runs in folders ``out/COMBINATION/seed-N``; finished ones are not repeated.
        device: instead of the configuration's.
        on_round: told the combination, the rounds done, their number and the runs.

    Returns:
        The runs of each combination, by its name, in the order of the grid.
    """
    loaded: dict[str, Dataset] = {}
    prepared: list[tuple[str, list[Job]]] = []
    # All of it is checked and planned before any of it is trained.
    for name, combination in list(combinations(config)):
        key = repr(combination.data)
        if key not in loaded:
            loaded[key] = configured_data(combination)
        jobs = [
            configured_job(combination, data=loaded[key], shift=i, device=device, label=name)
            for i in range(seeds)
        ]
        prepared.append((name, jobs))
    return {name: train_group(name, jobs, out, on_round) for name, jobs in prepared}


def train_group(
    name: str, jobs: list[Job], out: Path | None = None, on_round: Progress | None = None
) -> list[Run]:
    """Train jobs that differ in their seed, side by side where that is possible.

    Args:
        name: of the group; its runs are kept in a folder of that name.
        jobs: one a seed.
        out: keep the runs in folders ``out/NAME/seed-N``; finished ones are not repeated.
        on_round: told the name, the rounds done, their number and the runs.
    """
    places: list[Path | None] = [None] * len(jobs)
    if out is not None:
        places = [out / folder_name(name) / f"seed-{job.seed}" for job in jobs]
    begun = [p is not None and RunFolder(p).is_run for p in places]
    total = jobs[0].plan.training.rounds

    def told(done: int, runs: Sequence[Run]) -> None:
        if on_round is not None:
            on_round(name, done, total, runs)

    if jobs[0].engine == "batched" and not any(begun):
        return train_side_by_side(jobs, outs=places, on_round=told)
    runs = []
    for job, place in zip(jobs, places, strict=True):
        runs.append(train_job(job, out=place, resume=place is not None))
        told(total, runs)
    return runs


def folder_name(name: str) -> str:
    """The name as a folder can be called.

    Example:
        >>> folder_name("privacy-aware, mean")
        'privacy-aware_mean'
    """
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("._")
    if not plain:
        raise InputError("grid", given=name, allowed="values with a letter or digit in them")
    return plain[:80]

# SPDX-License-Identifier: Apache-2.0
"""``train``: execute a plan, write the run down, survive a crash; several plans side by side."""

from __future__ import annotations

import copy
import ctypes
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dpcohort
from dpcohort._validate import IntArray
from dpcohort.aggregation import AggregationRule, Cohort
from dpcohort.atomic_file import atomic_writer, owner_only, write_text
from dpcohort.config import Config
from dpcohort.config.settings import config_for_folder
from dpcohort.consent import typed
from dpcohort.data import Dataset, Partition
from dpcohort.data.partition import load_partition, save_partition
from dpcohort.engine import (
    Arrived,
    BatchedEngine,
    ClientRecords,
    EngineState,
    Evaluator,
    Experiment,
    Optimiser,
    ReferenceEngine,
    ServerStep,
    Trainer,
    train_rounds,
)
from dpcohort.engine.clipping.per_example import FlatLayout
from dpcohort.engine.experiment import cohort_of
from dpcohort.errors import DivergedError, DpcohortError, InputError, VerificationError
from dpcohort.limits import exhausted
from dpcohort.models.weights import frozen_sha256
from dpcohort.plan import Plan
from dpcohort.plugins import is_named_function, named_plugin
from dpcohort.round_record import RoundRecord
from dpcohort.runs.chooser import SKETCHES, Chooser
from dpcohort.runs.configured import combinations, configured_data, configured_job
from dpcohort.runs.continuation import refuse_continued, take_over
from dpcohort.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    LAST_MODEL,
    LEDGER,
    MODEL,
    PARTITION,
    PLAN,
    RESULT,
    ROUNDS,
    SETTINGS,
    append_line,
    begin_run,
    close_to_others,
    environment,
    finite_json,
    fixed_settings,
    is_run,
    latest_checkpoint,
    open_log,
    read_json,
    read_log,
    remove_receipts,
    rewrite_log,
    settings_sha256,
    without_times,
    write_checkpoint,
    write_json,
)
from dpcohort.runs.job import Job, TrainingJob, make_job
from dpcohort.runs.journal import Journal
from dpcohort.runs.ranks import share
from dpcohort.runs.run import Callback, Run
from dpcohort.runs.seal import changes_since_sealed, write_sealed


class Recorder:
    """One of the trainings that a loop does: where it stands, who chooses, and its record on disk.

    Args:
        job: what is trained.
        out: the run folder; None writes nothing.
        resume: go on with the run in that folder; without one there, begin it.
    """

    def __init__(
        self, job: TrainingJob, out: str | Path | None = None, *, resume: bool = False
    ) -> None:
        self.job = job
        self._rounds: FileIO | None = None
        self._chooser: Chooser | None = None
        #: Arrays of the checkpoint that a run goes on from.
        self._arrays: dict[str, Any] = {}
        #: The last state that was whole: what is kept if the next round fails.
        self.whole: EngineState | None = None
        self._owner = settings_sha256(job.settings())
        if job.plan.before and job.after is None:
            raise InputError.because(
                "the plan goes on from an earlier run, whose model and ledger are needed. Say "
                "which: --after RUN (in Python after=RUN)."
            )
        if job.after is not None and out is None:
            raise InputError.because(
                "a training that goes on from a run is written down: give it a folder, out."
            )
        folder = None if out is None else Path(out)
        goes_on = resume and folder is not None and is_run(folder)
        if folder is not None and goes_on:
            _check_same_run(folder, read_json(folder / SETTINGS), job)
        elif folder is not None:
            if job.after is not None:
                refuse_continued(job.after, job.plan, folder)
            begin_run(folder, again=resume, private=job.private)
        self.run = Run(
            plan=job.plan,
            settings=job.settings(),
            ledger=Journal(job.plan, None if folder is None else folder / LEDGER),
            path=folder,
            partition=job.partition,
            module=job.model,
            inputs=_inputs(job),
        )
        if folder is not None:
            try:  # now that nobody else can count here
                if goes_on:
                    self._go_on(folder)
                else:
                    self._begin(folder)
            except BaseException:
                self.close()
                raise

    def start(self, fresh: EngineState) -> EngineState:
        """Where to begin: the newest whole checkpoint, or the fresh state."""
        arrays = self._arrays or self.job.carried
        return fresh.restored({k: v for k, v in arrays.items() if not k.startswith(SKETCHES)})

    def begin(self, fresh: EngineState, records: ClientRecords | None = None) -> None:
        """Go to where the training begins: its start, or the last checkpoint of its folder."""
        self.state = self.start(fresh)
        self._chooser = self.job.chooser(self.run.ledger, self._arrays, records)
        self.whole = copy.deepcopy(self.state)
        counted = self.run.ledger.rounds
        while not self.job.repeats and self.state.next_round in counted:
            lost = self.state.next_round  # counted before a crash, and never computed again
            self.state.next_round += 1
            self.lost_round(lost, self.state)
        self.whole = copy.deepcopy(self.state)

    def choose(self, round: int) -> Cohort:
        """Name the cohort of a round, and count it on disk before any of it is computed."""
        clients = self.job.plan.participation.cohort(round)
        if clients is None:
            assert self._chooser is not None
            clients = self._chooser.cohort(round, self.state.parameters)
        self.count(round, clients)
        return cohort_of(self.job.plan, round, clients)

    def saw(self, arrived: Arrived | None) -> None:
        """Tell the chooser of updates, which carry their noise."""
        if arrived is not None and self._chooser is not None:
            self._chooser.saw(arrived.cohort.clients, arrived.updates)

    def record(self, record: RoundRecord) -> RoundRecord:
        """Write a computed round down, unless it left a model that is no longer numbers."""
        job, path = self.job, self.run.path
        if not bool(torch.isfinite(self.state.parameters).all()):
            kept = f" The state before that round is kept in {path}." if path else ""
            raise DivergedError.because(
                f"round {self.state.next_round - 1} left the model with numbers that are not "
                f"finite.{kept} Lower the step size, optimiser.learning_rate (now "
                f"{job.optimiser.local_step}) or {job.optimiser.server_rate}, the clip, "
                f"training.clip (now {job.plan.training.clip:g}), or the noise: it is "
                f"{job.plan.noise_to_clip:.3g} times the clip in each round."
            )
        if path is not None:
            self.whole = copy.deepcopy(self.state)
        return self.after_round(record, self.state)

    def count(self, round: int, cohort: IntArray) -> None:
        """Count the draws of a round, on disk, before any of it is computed.

        A round that was counted before a crash is the same release bit for bit where it can be
        repeated, and is not counted twice; any other is refused.
        """
        if not self.job.repeats or round not in self.run.ledger.rounds:
            self.run.ledger.count(round, cohort)

    def after_round(self, record: RoundRecord, state: EngineState) -> RoundRecord:
        """Write a round's public record, and a checkpoint if one is due."""
        if self.job.private:
            # How long a round took tells how many records were drawn, which must stay secret.
            record = replace(record, seconds=math.nan)
        self._write_line(record)
        done, total = state.next_round, self.job.plan.training.rounds
        if done % self.job.checkpoint_every == 0 or done == total:
            self.keep(state)
        return record

    def lost_round(self, round: int, state: EngineState) -> None:
        """A private round that was counted, but whose result a crash took."""
        cohort = cohort_of(self.job.plan, round, self.run.ledger.cohort(round))
        self._write_line(
            RoundRecord(
                round=round,
                clients=tuple(cohort.clients.tolist()),
                noise_stds=tuple(cohort.noise_stds.tolist()),
                seconds=math.nan,
                lost=True,
            )
        )
        self.run.warnings.append(
            f"round {round} was counted before a crash and is not computed again; its clients' "
            "budgets are spent, its update is lost."
        )
        self.keep(state)

    def keep(self, state: EngineState) -> None:
        """Write a checkpoint now."""
        if self.run.path is None:
            return
        if self._rounds is not None:  # a state on disk has all of its rounds written down
            os.fsync(self._rounds.fileno())
        arrays = state.to_arrays()
        if self._chooser is not None:
            arrays |= self._chooser.to_arrays()
        write_checkpoint(
            self.run.path / CHECKPOINTS, arrays, next_round=state.next_round, owner=self._owner
        )

    def finish(self, state: EngineState) -> None:
        """The model, the receipts and the result."""
        self.run.model = self._weights(state.parameters)
        if state.average is not None:
            self.run.average = self._weights(state.average)
        scored = state.parameters if state.average is None else state.average
        self.run.judged = self.job.judge(scored, self.run.history)
        if (folder := self.run.path) is not None and not (folder / RESULT).exists():
            # Certifying takes longest: a crash in it leaves no model that no result speaks of.
            self.run.write_receipts()
            if self.run.average:
                _save_weights(folder / LAST_MODEL, self.run.model)
            _save_weights(folder / MODEL, self.run.scored_weights)
            write_sealed(
                folder,
                {
                    "rounds": self.run.rounds_done,
                    "lost_rounds": sum(line.lost for line in self.run.history),
                    "seconds": sum(line.seconds for line in self.run.history),
                    "test": self.run.test.to_dict() if self.run.has_test else None,
                    "scored": self.run.scored,
                    **_inputs(self.job),
                    **finite_json(self.run.judged),
                    "warnings": [*self.run.warnings, *self.run.judged["warnings"]],
                },
            )
        self.close()

    def close(self) -> None:
        """Close the files; those of a private run say of no time but that at which it began."""
        self.run.ledger.close()
        if self._rounds is not None:
            self._rounds.close()
        if self.job.private and self.run.path is not None:
            without_times(self.run.path)

    def _begin(self, folder: Path) -> None:
        job = self.job
        if job.config is not None:
            write_text(folder / CONFIG, config_for_folder(job.config, job.config_folder, folder))
        job.plan.save(folder / PLAN)
        save_partition(job.partition, folder / PARTITION)
        found = environment(job.device)
        if job.config is not None and _OWN_MODULE.search(job.config):
            # Where the user's own modules were found, from the run folder.
            began = os.path.relpath(Path.cwd(), folder.resolve())
            found["began_in"] = Path(began).as_posix()
        write_json(folder / ENVIRONMENT, found)
        self._rounds = open_log(folder / ROUNDS)
        if job.after is not None:
            take_over(job.plan, job.after, folder)
            if job.private:
                close_to_others(folder)
        # Last: from here on the folder is a run that can be resumed.
        write_json(folder / SETTINGS, job.settings())

    def _go_on(self, folder: Path) -> None:
        job, run = self.job, self.run
        if job.private:
            close_to_others(folder)
        refuse_continued(folder)
        if (folder / RESULT).exists():  # finished: nothing of it is written again
            for name, words in changes_since_sealed(folder, read_json(folder / RESULT)):
                raise VerificationError(
                    f"{folder / name}: {words} The run is finished, and was changed since; see: "
                    "dpcohort verify"
                )
        else:  # of an earlier stop; what is counted from here on is not in them
            remove_receipts(folder)
        next_round, self._arrays, damaged = latest_checkpoint(
            folder / CHECKPOINTS, owner=self._owner
        )
        uncounted = set(range(next_round)) - self.run.ledger.rounds
        if uncounted:
            raise VerificationError(
                f"{folder / LEDGER} does not count round {min(uncounted)}, which was computed. "
                "Nothing is computed without a whole ledger; see: dpcohort verify"
            )
        kept = [
            entry
            for entry in read_log(folder / ROUNDS)
            if not isinstance(entry.get("round"), int) or entry["round"] < next_round
        ]
        run.history += [RoundRecord.from_dict(entry) for entry in kept]
        run.warnings += [f"{words} The state before it is used." for words in damaged]
        run.warnings += _mended(folder, job)
        rewrite_log(folder / ROUNDS, kept)
        self._rounds = open_log(folder / ROUNDS)

    def _write_line(self, line: RoundRecord) -> None:
        self.run.history.append(line)
        if self._rounds is not None:
            # Not durable by itself: the checkpoint is what a resume trusts.
            append_line(self._rounds, line.to_dict(), durable=False)

    def _weights(self, vector: Any) -> dict[str, Any]:
        """Every tensor of the model by name, the trained ones from the vector."""
        model = self.job.model
        trained = FlatLayout(model).unflatten(vector.detach().cpu())
        # A tied tensor has several names here and one among the trained.
        new = {id(p): trained.get(name, p) for name, p in model.named_parameters()}
        stored = model.state_dict(keep_vars=True).items()
        state = {name: new.get(id(tensor), tensor) for name, tensor in stored}
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}


def _save_weights(path: Path, weights: Any) -> None:
    from safetensors.numpy import save

    with atomic_writer(path, binary=True) as file:
        file.write(save(dict(weights)))


def _inputs(job: TrainingJob) -> dict[str, Any]:
    """The public constants by which inputs are scaled, where they are known here."""
    return {"inputs": asdict(job.data.normalisation)} if isinstance(job, Job) else {}


#: A ``module:function`` in a configuration.
_OWN_MODULE = re.compile(r'= "[A-Za-z_][\w.]*:[A-Za-z_]\w*"')


def _check_same_run(folder: Path, stored: dict[str, Any], job: TrainingJob) -> None:
    ours, theirs = fixed_settings(job.settings()), fixed_settings(stored)
    different = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    if not different:
        return
    key = different[0]
    words = f"{key} = {theirs.get(key)!r}; now it is {ours.get(key)!r}"
    if "plan" in different:
        words = f"the plan {str(theirs.get('plan'))[:16]}... and this is {job.plan.sha256[:16]}..."
        then, now = _facts(Plan.load(folder / PLAN)), _facts(job.plan)
        other = next((name for name in then if then[name] != now[name]), None)
        if other is not None:
            words += f" ({other} was {then[other]!r} and is {now[other]!r})"
    raise InputError.because(
        f"{folder} was begun with {words}. Resume with the settings the run was begun with, "
        "or choose another folder."
    )


def _mended(folder: Path, job: TrainingJob) -> list[str]:
    """Write plan and partition again if they are damaged, and say so.

    The job has the ones the run was begun with: their hashes in ``run.json`` have been compared.
    """
    words, partition = [], job.partition
    for path, load, save, sha256 in (
        (folder / PLAN, Plan.load, job.plan.save, job.plan.sha256),
        (folder / PARTITION, load_partition, partial(save_partition, partition), partition.sha256),
    ):
        with suppress(DpcohortError):
            if load(path).sha256 == sha256:
                continue
        save(path)
        words.append(f"{path} was damaged and was written again.")
    return words


def _facts(plan: Plan) -> dict[str, object]:
    """What may be told of a plan beside another one."""
    return {
        "the rule": plan.rule,
        "settings of the rule": dict(plan.participation.settings),
        **{f"training.{name}": value for name, value in asdict(plan.training).items()},
        **{f"privacy.{name}": value for name, value in asdict(plan.contract).items()},
        "the number of clients": len(plan.population),
        "the seed of the schedule": plan.seed,
    }


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
    after: str | Path | None = None,
    weights: str | Path | None = None,
    weights_source: str = "",
    frozen: Sequence[str] = (),
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
        after: folder of the run that a plan of ``replan`` goes on from, with its model.
        weights: of a model given by name: a safetensors file to start from.
        weights_source: whose weights these are and what they were trained on, for receipts.
        frozen: of a model given by name: parameters, or parts of it, that are not trained.

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
    typed(*(one for one in (model, data, aggregation) if isinstance(one, str)))
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
        after=after,
        weights=weights,
        weights_source=weights_source,
        frozen=frozen,
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
    if job.private and any(getattr(listener, "writes_times", False) for listener in listeners):
        raise InputError.because(
            "A private training refuses callbacks that write when rounds ended (Weights & Biases): "
            "times tell how many records were drawn. Nothing was spent. Log the run when it is "
            "finished: docs/how-to/notebook.md. TensorBoard does without times."
        )
    return _trained([job], [out], resume=resume, listeners=listeners)[0]


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
    return _trained(jobs, outs or [None] * len(jobs), on_round=on_round)


def _trained(
    jobs: Sequence[Job],
    outs: Sequence[str | Path | None],
    *,
    resume: bool = False,
    listeners: Sequence[Callback] = (),
    on_round: Callable[[int, Sequence[Run]], None] | None = None,
) -> list[Run]:
    """Train jobs that go together, or one alone."""
    first = jobs[0]
    engine, experiments = engine_of(jobs)
    if engine.isolated is not None:
        slow = engine.isolated.path.kind != "banked"
        logging.getLogger("dpcohort").log(
            logging.WARNING if slow else logging.INFO, engine.isolated.how
        )
    share(jobs, engine)
    parts: list[Recorder] = []
    with owner_only(first.private), closing(parts):
        for job, out in zip(jobs, outs, strict=True):
            parts.append(Recorder(job, out, resume=resume))
        for part, state, experiment in zip(
            parts, engine.initial_states(), experiments, strict=True
        ):
            part.begin(state, experiment.records)
        run_rounds(
            parts,
            engine,
            [experiment.server_step for experiment in experiments],
            evaluator=first.evaluator(),
            evaluate_every=first.evaluate_every,
            listeners=listeners,
            on_round=on_round,
        )
    return [part.run for part in parts]


def engine_of(
    jobs: Sequence[Job], *, micro_batch: int | None = None
) -> tuple[ReferenceEngine | BatchedEngine, list[Experiment]]:
    """What computes the updates of jobs that go together, and what it trains.

    Args:
        jobs: with the same model and data set.
        micro_batch: examples in one pass at most; None picks a bound.
    """
    first = jobs[0]
    records = first.records()
    experiments = [
        job.experiment(records if job is first else records.repartitioned(job.partition))
        for job in jobs
    ]
    if first.engine == "reference":
        return ReferenceEngine(first.trained, experiments, loss=first.loss), experiments
    engine = BatchedEngine(first.trained, experiments, loss=first.loss, micro_batch=micro_batch)
    return engine, experiments


def run_rounds(
    parts: Sequence[Recorder],
    trainer: Trainer,
    steps: Sequence[ServerStep],
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
        steps: what the server does with the updates of each.
        evaluator: test set, None for none.
        evaluate_every: rounds between evaluations.
        listeners: told about each round of each part.
        on_round: told the number of rounds done and all runs, after each round.
    """

    def saw(arrived: Sequence[Arrived | None]) -> None:
        for part, came in zip(parts, arrived, strict=True):
            part.saw(came)

    _give_back_memory()
    rounds = train_rounds(
        trainer,
        steps,
        [part.state for part in parts],
        rounds=parts[0].job.plan.training.rounds,
        choose=lambda round: [part.choose(round) for part in parts],
        saw=saw,
        evaluator=evaluator,
        evaluate_every=evaluate_every,
    )
    for records in _told(rounds, [part.job for part in parts if isinstance(part.job, Job)]):
        for part, record in zip(parts, records, strict=True):
            line = part.record(record)
            for listener in listeners:
                listener.on_round(line, part.run)
        if on_round is not None:
            on_round(parts[0].state.next_round, [part.run for part in parts])
    for part in parts:
        part.finish(part.state)


def _give_back_memory() -> None:
    """Give the system what planning and checking took and freed; glibc would keep it for later."""
    if sys.platform == "linux":
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _told(
    rounds: Iterator[tuple[RoundRecord, ...]], jobs: Sequence[Job]
) -> Iterator[tuple[RoundRecord, ...]]:
    """The rounds; what goes wrong on records is told in one message, privately without its text.

    Args:
        rounds: being trained.
        jobs: those of them whose records are on this machine.

    Raises:
        InputError: a loss of the user's failed on a record, or anything did in a private run.
    """
    try:
        yield from rounds
        return
    except DpcohortError:
        raise
    except Exception as error:  # the user's loss or model may fail in any way
        words = failure_on_records(error, jobs)
        if words is None:
            raise
    raise InputError.because(words)  # here the error with its text is gone


def failure_on_records(error: Exception, jobs: Sequence[Job]) -> str | None:
    """What to say of an error in a round; None where it may be seen as it is."""
    frames = list(traceback.walk_tb(error.__traceback__))
    code, line = frames[-1][0].f_code, frames[-1][1]
    ours = Path(dpcohort.__file__).parent in Path(code.co_filename).parents
    if exhausted(error) is not None or (isinstance(error, OSError) and ours):
        return None
    kind, said, whose = type(error).__name__, "", "the training"
    for name in {job.task.loss for job in jobs if is_named_function(job.task.loss)}:
        own = getattr(named_plugin("loss", name), "__code__", None)
        found = [(frame.f_code, at) for frame, at in frames if frame.f_code is own]
        if found:
            (code, line), whose = found[-1], f"the loss {name}"
    if any(job.private for job in jobs):
        said = (
            " What it says is withheld, as it may be about a record: try it on made-up or public "
            "records without --private-entropy."
        )
    elif whose == "the training":
        return None  # a mistake of ours, or of a model in a simulation, with its traceback
    else:
        kind = f"{kind}: {str(error).rstrip('.')}"
    where = f"{Path(code.co_filename).name}, line {line}"
    return f"{whose} failed on records of a round ({where}): {kind}.{said} The round is counted."


@contextmanager
def closing(parts: list[Recorder]) -> Iterator[None]:
    """Close the parts' files in the end; after an error keep what is whole."""
    try:
        yield
    except BaseException:
        for part in parts:
            _settle(part)
        raise
    for part in parts:
        part.close()


def _settle(part: Recorder) -> None:
    """Keep the last whole state and the receipts; whatever stopped the run is the news.

    A state whose round has no line yet is not kept: the round is done, or asked for, again.
    """
    path = part.run.path
    try:
        if part.whole is not None and not (path is not None and (path / RESULT).exists()):
            written = part.run.history[-1].round + 1 if part.run.history else 0
            if part.whole.next_round == written:
                part.keep(part.whole)
            if path is not None:
                # Counted from the disk: what was interrupted may not be in memory yet.
                part.run.ledger.close()
                part.run.ledger = Journal.read(part.job.plan, path / LEDGER)
            part.run.write_receipts()
    except DpcohortError:
        pass  # the disk that stopped us is still full; the last checkpoint stands
    finally:
        part.close()


def _check_side_by_side(jobs: Sequence[Job]) -> None:
    if not jobs:
        raise InputError("jobs", given=[], allowed="at least one")
    first = jobs[0]
    if any(job.private for job in jobs):
        raise InputError.because("runs side by side are simulations; train a private run alone.")
    if any(
        job.data is not first.data or job.evaluate_every != first.evaluate_every for job in jobs
    ):
        raise InputError.because("runs side by side need the same data set and evaluate as often.")
    if len({frozen_sha256(job.model) for job in jobs}) > 1:
        raise InputError.because(
            "runs side by side need the same frozen parameters; these differ with the seed. "
            "Give them in a weights file, or train the runs one by one."
        )
    if any(job.engine != "batched" or job.device != first.device for job in jobs):
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
    prepared: dict[str, list[Job]] = {}
    # All of it is checked and planned before any of it is trained.
    for name, combination in list(combinations(config)):
        key = repr((combination.data, combination.task))
        if key not in loaded:
            loaded[key] = configured_data(combination)
        prepared[name] = [
            configured_job(combination, data=loaded[key], shift=i, device=device, label=name)
            for i in range(seeds)
        ]
    return {name: train_group(name, jobs, out, on_round) for name, jobs in prepared.items()}


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
    begun = [p is not None and is_run(p) for p in places]
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

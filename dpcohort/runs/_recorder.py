# SPDX-License-Identifier: Apache-2.0
"""``Recorder``: a training and its run folder: ledger, rounds, checkpoints, receipts, result."""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as tensors_as_bytes

from dpcohort._validate import IntArray
from dpcohort.accounting import Charge
from dpcohort.accounting._charges import read_charge, write_charge
from dpcohort.aggregation import Cohort
from dpcohort.atomic_file import atomic_writer, write_text
from dpcohort.config._settings import config_for_folder
from dpcohort.data import load_partition, save_partition
from dpcohort.engine import (
    ClientRecords,
    CohortUpdates,
    EngineState,
)
from dpcohort.engine._experiment import cohort_of
from dpcohort.engine.clipping import FlatLayout
from dpcohort.errors import DivergedError, DpcohortError, InputError, VerificationError
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord
from dpcohort.runs._chooser import SKETCHES, Chooser
from dpcohort.runs._continuation import refuse_continued, take_over
from dpcohort.runs._folder import (
    CHARGES,
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
from dpcohort.runs._job import Job, TrainingJob
from dpcohort.runs._journal import Journal
from dpcohort.runs._paid_evaluation import results_again
from dpcohort.runs._run import Run, result_in
from dpcohort.runs._seal import changes_since_sealed, write_sealed
from dpcohort.runs._success import linear_reach, sureness
from dpcohort.text_files import finite_json


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
        self._chooser: Chooser
        #: Arrays of the checkpoint that a run goes on from.
        self._arrays: dict[str, Any] = {}
        #: The last state that was whole: what is kept if the next round fails.
        self.whole: EngineState | None = None
        self._owner = settings_sha256(job.settings())
        if job.after is None:
            job.plan.past.refuse_beginning()
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
        clients = self._chooser.cohort(round, self.state.parameters)
        self.count(round, clients)
        cohort = cohort_of(self.job.plan, round, clients)
        rule = self.job.optimiser.local
        if rule is None or not rule.keeps:
            return cohort
        return replace(cohort, controls=rule.controls(self.state.tensors.get("controls"), clients))

    def observe(self, arrived: CohortUpdates | None) -> None:
        """Pass noisy updates to the chooser."""
        if arrived is None:
            return
        cohort, updates, rule = arrived.cohort, arrived.updates, self.job.optimiser.local
        self._chooser.saw(cohort.clients, updates)
        if rule is not None and rule.keeps:
            tensors = self.state.tensors
            length = self.job.optimiser.length(self.job.plan.training, round=cohort.round)
            before = tensors.get("controls")
            kept = rule.keep(before, cohort.clients, updates, cohort.controls, length)
            if kept is not None:
                tensors["controls"] = kept

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
        arrays = {**state.to_arrays(), **self._chooser.to_arrays()}
        write_checkpoint(
            self.run.path / CHECKPOINTS, arrays, next_round=state.next_round, owner=self._owner
        )
        self._forget_times()

    def _forget_times(self) -> None:
        """Files of a private run say of no time but that at which it began; a crash may come."""
        if self.job.private and self.run.path is not None:
            without_times(self.run.path)

    def finish(self, state: EngineState) -> None:
        """The model, the receipts and the result."""
        self.run.model = self._weights(state.parameters)
        if state.average is not None:
            self.run.average = self._weights(state.average)
        scored = state.parameters if state.average is None else state.average
        self.run.judged = self.job.judge(scored, self.run.history) | self._evaluated()
        if isinstance(self.job, Job):
            reach = linear_reach(self.run.scored_weights, self.job.data.row_bound)
            self.run.judged["warnings"] += sureness(self.job.task, reach)
        if (folder := self.run.path) is not None and not (folder / RESULT).exists():
            # Certifying takes longest: a crash in it leaves no model that no result speaks of.
            self.run.write_receipts()
            if self.run.average:
                _save_weights(folder / LAST_MODEL, self.run.model)
            _save_weights(folder / MODEL, self.run.scored_weights, _about(self.job))
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

    def _evaluated(self) -> dict[str, Any]:
        """The evaluation that the plan keeps a share for, charged on disk before it is computed."""
        run, terms, folder = self.run, self.job.evaluation, self.run.path
        if terms is None:
            return {}
        if folder is not None and (folder / RESULT).exists():
            return {"evaluation": result_in(folder).get("evaluation")}
        later = run.later_charges()
        paid: Charge | None = None
        for charge in later:  # of a run that was stopped after it was paid for
            if charge.what == "evaluation" and folder is not None:
                paid = charge if self.job.repeats else None
                _, released = read_charge(folder / CHARGES / f"{charge.id}.json")
                if released:
                    return {"evaluation": results_again(run.plan, self.job.task, charge, released)}
        try:
            known = (*run.plan.past.paid.charges, *later)
            charge = paid or terms.charge(known, private=self.job.private)
        except DpcohortError as error:
            run.warnings.append(f"no evaluation: {error}")
            return {}
        if folder is None:
            run.unwritten = (*run.unwritten, charge)
        else:
            (folder / CHARGES).mkdir(exist_ok=True)
            write_charge(folder / CHARGES / f"{charge.id}.json", charge)
        sums = self.job.noised_sums(run, terms)
        if not sums:
            run.warnings.append("no evaluation: no client answered; what was charged stays so.")
            return {}
        terms, found = terms.of_those(list(sums)), np.stack(list(sums.values()))
        if folder is not None:
            write_charge(folder / CHARGES / f"{charge.id}.json", charge, **terms.released(found))
        return {"evaluation": terms.results(charge, found)}

    def close(self) -> None:
        """Close the files."""
        self.run.ledger.close()
        if self._rounds is not None:
            self._rounds.close()
        self._forget_times()

    def _begin(self, folder: Path) -> None:
        job = self.job
        text = "" if job.source is None else job.source.text
        if job.source is not None and text:
            write_text(folder / CONFIG, config_for_folder(text, job.source.folder, folder))
        job.plan.save(folder / PLAN)
        save_partition(job.partition, folder / PARTITION)
        found = environment(job.device)
        if _OWN_MODULE.search(text):
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


def _save_weights(path: Path, weights: Any, about: dict[str, str] | None = None) -> None:
    with atomic_writer(path, binary=True) as file:
        file.write(tensors_as_bytes(dict(weights), metadata=about))


def _about(job: TrainingJob) -> dict[str, str]:
    """What a model takes and says, for its file: scaling, columns with their bounds, task."""
    task = {"outputs": job.task.outputs, **job.task.to_dict()}
    return {"dpcohort": json.dumps({**_inputs(job), "task": task})}


def _inputs(job: TrainingJob) -> dict[str, Any]:
    """The public constants by which inputs are scaled, and columns of a table, where known here."""
    if not isinstance(job, Job):
        return {}
    columns = {} if job.data.columns is None else {"columns": job.data.columns.to_dict()}
    return {"inputs": asdict(job.data.normalisation), **columns}


#: A ``module:function`` in a configuration.
_OWN_MODULE = re.compile(r'= "[A-Za-z_][\w.]*:[A-Za-z_]\w*"')


def _check_same_run(folder: Path, stored: dict[str, Any], job: TrainingJob) -> None:
    ours, theirs = fixed_settings(job.settings()), fixed_settings(stored)
    different = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    if not different:
        return
    if "randomness" in different:
        raise InputError.because(
            f"{folder} is a simulation, and this run would be private. Choose another folder."
            if job.private
            else f"{folder} is private, and cannot be repeated with a seed: nobody kept its "
            "batches and noise. Resume it without a simulation, or choose another folder."
        )
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
        **{f"privacy.{name}": value for name, value in plan.contract.settings().items()},
        "the number of clients": len(plan.population),
        "the seed of the schedule": plan.seed,
    }


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

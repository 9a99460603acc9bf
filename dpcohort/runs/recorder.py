# SPDX-License-Identifier: Apache-2.0
"""Writes a run down while it happens: ledger before a round, record and checkpoint after it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpcohort._validate import IntArray
from dpcohort.atomic_file import atomic_writer, write_text
from dpcohort.data.partition import load_partition, save_partition
from dpcohort.engine import EngineState
from dpcohort.engine.clipping.per_example import FlatLayout
from dpcohort.errors import DpcohortError, InputError, VerificationError
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord
from dpcohort.runs.folder import (
    AppendLog,
    RunFolder,
    environment,
    fixed_settings,
    latest_checkpoint,
    read_json,
    read_log,
    rewrite_log,
    settings_sha256,
    write_checkpoint,
    write_json,
)
from dpcohort.runs.job import TrainingJob
from dpcohort.runs.journal import Journal
from dpcohort.runs.receipts import write_receipts
from dpcohort.runs.run import Run

__all__ = ["Recorder"]


class Recorder:
    """The run of one job, and its folder if it has one.

    Args:
        job: what is trained.
        out: the run folder; None writes nothing.
        resume: go on with the run in that folder; without one there, begin it.
    """

    def __init__(
        self, job: TrainingJob, out: str | Path | None = None, *, resume: bool = False
    ) -> None:
        self._job = job
        self._folder: RunFolder | None = None
        self._rounds: AppendLog | None = None
        self._start: EngineState | None = None
        #: Arrays of the checkpoint that a run goes on from.
        self.arrays: dict[str, Any] = {}
        #: What a checkpoint holds beside the state of the engine.
        self.more_arrays: Callable[[], dict[str, Any]] = dict
        self._owner = settings_sha256(job.settings())
        if out is None:
            self.run = Run(
                plan=job.plan,
                settings=job.settings(),
                ledger=Journal(job.plan),
                partition=job.partition,
            )
        elif resume and RunFolder(Path(out)).is_run:
            self._reopen(RunFolder(Path(out)))
        else:
            self._begin(RunFolder.begin(out, again=resume, private=job.private))

    def start(self, fresh: EngineState) -> EngineState:
        """Where to begin: the newest whole checkpoint, or the fresh state."""
        if self._start is None:
            return fresh
        device = fresh.parameters.device
        state = EngineState.from_arrays(self._start.to_arrays(), device=device)
        if state.parameters.shape != fresh.parameters.shape:
            raise InputError.because("the checkpoint is of another model. Resume with that model.")
        return state

    def count(self, round: int, cohort: IntArray) -> None:
        """Count the draws of a round, on disk, before any of it is computed.

        A round that was counted before a crash is the same release bit for bit where it can be
        repeated, and is not counted twice; any other is refused.
        """
        if not self._job.repeats or round not in self.run.ledger.rounds:
            self.run.ledger.count(round, cohort)

    def after_round(self, record: RoundRecord, state: EngineState) -> RoundRecord:
        """Write a round's public record, and a checkpoint if one is due."""
        if self._job.private:
            # How long a round took tells how many records were drawn, which must stay secret.
            record = replace(record, seconds=math.nan)
        self._write_line(record)
        done, total = state.next_round, self._job.plan.training.rounds
        if done % self._job.checkpoint_every == 0 or done == total:
            self.keep(state)
        return record

    def lost_round(self, round: int, state: EngineState) -> None:
        """A private round that was counted, but whose result a crash took."""
        cohort = self.run.ledger.cohort(round)
        assert cohort is not None
        stds = (
            self._job.plan.noise_multipliers[cohort]
            * self._job.plan.training.clip
            / self._job.plan.batch_sizes[cohort]
        )
        self._write_line(
            RoundRecord(
                round=round,
                clients=tuple(cohort.tolist()),
                noise_stds=tuple(stds.tolist()),
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
        if self._folder is not None:
            write_checkpoint(
                self._folder.checkpoints,
                {**state.to_arrays(), **self.more_arrays()},
                next_round=state.next_round,
                owner=self._owner,
            )

    def finish(self, state: EngineState) -> None:
        """The model, the receipts and the result."""
        self.run.model = self._weights(state.parameters)
        if state.average is not None:
            self.run.average = self._weights(state.average)
        if self._folder is not None:
            # Certifying takes longest: a crash in it leaves no model that no result speaks of.
            self.write_receipts()
            hashes = {"model": _save_weights(self._folder.model, self.run.model)}
            if self.run.average:
                hashes["average"] = _save_weights(self._folder.average, self.run.average)
            hashes["settings"] = self._owner
            if self._folder.config.exists():
                config = self._folder.config.read_bytes()
                hashes["config"] = hashlib.sha256(config).hexdigest()
            lines = [line.test_average or line.test for line in self.run.history]
            last = next((found for found in reversed(lines) if found is not None), None)
            write_json(
                self._folder.result,
                {
                    "rounds": self.run.rounds_done,
                    "lost_rounds": sum(line.lost for line in self.run.history),
                    "seconds": sum(line.seconds for line in self.run.history),
                    "sha256": hashes,
                    "test": None if last is None else last.__dict__,
                },
            )
        self.close()

    def write_receipts(self) -> None:
        """Receipts for what has been counted so far."""
        if self._folder is not None:
            population = self._job.plan.population
            positions = {name: k for k, name in enumerate(population.ids)}
            write_receipts(self.run.receipts(), self._folder.receipts, positions)

    def close(self) -> None:
        """Close the files."""
        self.run.ledger.close()
        if self._rounds is not None:
            self._rounds.close()

    def _begin(self, folder: RunFolder) -> None:
        job = self._job
        self._folder = folder
        if job.config is not None:
            write_text(folder.config, job.config)
        job.plan.save(folder.plan)
        save_partition(job.partition, folder.partition)
        write_json(folder.environment, environment(job.device))
        self._rounds = AppendLog(folder.rounds)
        self.run = Run(
            plan=job.plan,
            settings=job.settings(),
            ledger=Journal(job.plan, folder.ledger),
            path=folder.path,
            partition=job.partition,
        )
        # Last: from here on the folder is a run that can be resumed.
        write_json(folder.settings, job.settings())

    def _reopen(self, folder: RunFolder) -> None:
        job = self._job
        self._folder = folder
        _check_same_run(folder, read_json(folder.settings), job)
        if job.private:
            folder.close_to_others()
        found = latest_checkpoint(folder.checkpoints, owner=self._owner)
        next_round = 0
        warnings: list[str] = []
        if found is not None:
            next_round, arrays, warnings = found
            self._start, self.arrays = EngineState.from_arrays(arrays), arrays
        kept = [entry for entry in read_log(folder.rounds) if _round_of(entry) < next_round]
        self.run = Run(
            plan=job.plan,
            settings=job.settings(),
            ledger=Journal(job.plan, folder.ledger),
            history=[RoundRecord.from_dict(entry) for entry in kept],
            path=folder.path,
            partition=job.partition,
            warnings=[f"{words} The state before it is used." for words in warnings],
        )
        uncounted = set(range(next_round)) - self.run.ledger.rounds
        if uncounted:
            self.close()
            raise VerificationError(
                f"{folder.ledger} does not count round {min(uncounted)}, which was computed. "
                "Nothing is computed without a whole ledger; see: dpcohort verify"
            )
        self.run.warnings += _mended(folder, job)
        rewrite_log(folder.rounds, kept)
        self._rounds = AppendLog(folder.rounds)

    def _write_line(self, line: RoundRecord) -> None:
        self.run.history.append(line)
        if self._rounds is not None:
            # Not durable by itself: the checkpoint is what a resume trusts.
            self._rounds.append(line.to_dict(), durable=False)

    def _weights(self, vector: Any) -> dict[str, Any]:
        """Every tensor of the model by name, the trained ones from the vector."""
        model = self._job.model
        trained = FlatLayout(model).unflatten(vector.detach().cpu())
        # A tied tensor has several names here and one among the trained.
        new = {id(p): trained.get(name, p) for name, p in model.named_parameters()}
        stored = model.state_dict(keep_vars=True).items()
        state = {name: new.get(id(tensor), tensor) for name, tensor in stored}
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}


def _save_weights(path: Path, weights: Any) -> str:
    from safetensors.numpy import save

    content = save(dict(weights))
    with atomic_writer(path, binary=True) as file:
        file.write(content)
    return hashlib.sha256(content).hexdigest()


def _round_of(entry: dict[str, Any]) -> int:
    round = entry.get("round")
    return round if isinstance(round, int) else 0


def _check_same_run(folder: RunFolder, stored: dict[str, Any], job: TrainingJob) -> None:
    ours, theirs = fixed_settings(job.settings()), fixed_settings(stored)
    different = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    if not different:
        return
    if "plan" in different:
        raise InputError.because(
            f"{folder.path} was begun with the plan {str(theirs.get('plan'))[:16]}... and this is "
            f"{job.plan.sha256[:16]}...{_first_difference(Plan.load(folder.plan), job.plan)}. "
            "Resume with the settings the run was begun with, or choose another folder."
        )
    key = different[0]
    raise InputError.because(
        f"{folder.path} was begun with {key} = {theirs.get(key)!r}; now it is {ours.get(key)!r}. "
        "Resume with the settings the run was begun with, or choose another folder."
    )


def _mended(folder: RunFolder, job: TrainingJob) -> list[str]:
    """Write plan and partition again if they are damaged, and say so.

    The job has the ones the run was begun with: their hashes in ``run.json`` have been compared.
    """
    words = []
    if not _is_whole(lambda: Plan.load(folder.plan).sha256 == job.plan.sha256):
        job.plan.save(folder.plan)
        words.append(f"{folder.plan} was damaged and was written again.")
    if not _is_whole(lambda: load_partition(folder.partition).sha256 == job.partition.sha256):
        save_partition(job.partition, folder.partition)
        words.append(f"{folder.partition} was damaged and was written again.")
    return words


def _is_whole(same: Callable[[], bool]) -> bool:
    try:
        return same()
    except DpcohortError:
        return False


def _first_difference(theirs: Plan, ours: Plan) -> str:
    """What two plans do not have in common, in words; the first such thing is enough."""
    then, now = _facts(theirs), _facts(ours)
    for name in then:
        if then[name] != now[name]:
            return f" ({name} was {then[name]!r} and is {now[name]!r})"
    return ""


def _facts(plan: Plan) -> dict[str, object]:
    return {
        "the rule": plan.selection.rule,
        "settings of the rule": dict(plan.selection.settings),
        **{f"training.{name}": value for name, value in asdict(plan.training).items()},
        **{f"the {name}": value for name, value in asdict(plan.contract).items()},
        "the number of clients": len(plan.population),
        "the seed of the schedule": plan.seed,
    }

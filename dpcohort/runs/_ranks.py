# SPDX-License-Identifier: Apache-2.0
"""A command under ``torchrun``: the first rank runs it, the others compute shares of its rounds.

Another rank never runs the command, so it neither prints nor writes, and has no run folder to
write in. It is told of a training by its configuration and its finished plan, loads the data
itself, and is asked whether that makes the very run: by the settings that a resume must agree with.
A training of anything else than a configuration says is refused before anything is counted.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dpcohort.config import loads_config
from dpcohort.config._settings import config_for_folder
from dpcohort.consent import allow_code, allowed_names, typed
from dpcohort.data import Dataset
from dpcohort.engine import BatchedEngine, Engine
from dpcohort.engine._experiment import cohort_of
from dpcohort.engine._ranks import LostRankError, Ranks, own_gpu
from dpcohort.errors import DpcohortError, InputError
from dpcohort.limits import exhausted
from dpcohort.plan import Plan
from dpcohort.runs._config_data import configured_data
from dpcohort.runs._config_job import configured_job
from dpcohort.runs._execution import engine_of, failure_on_records
from dpcohort.runs._folder import settings_sha256
from dpcohort.runs._job import Job

_STOPPED = 130
_joined = Ranks()


def run_command(command: Callable[[], int], note: Callable[[str], None]) -> int:
    """The exit code of a command, which the first rank runs and the others compute for.

    Args:
        command: returns its exit code.
        note: tells the user something that stops nothing.

    Raises:
        InputError: the ranks cannot meet.
    """
    global _joined
    _joined = ranks = Ranks.joined()
    if not ranks.leads:
        return _Worker(ranks).serve()

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not ranks.is_broken:  # else it is ending already, and keeps what is whole
            raise KeyboardInterrupt

    with suppress(ValueError):  # not the main thread, which alone gets signals
        signal.signal(signal.SIGTERM, stop)
    code = 1
    try:
        code = command()
        if code == 0 and not ranks.shared:
            note(f"nothing of this was shared: {ranks.count - 1} of {ranks.count} ranks waited.")
    finally:
        _joined = Ranks()
        ranks.end(code)
    return code


def share(jobs: Sequence[Job], engine: Engine) -> None:
    """Let other ranks, where there are any, compute their share of each round of an engine.

    Raises:
        InputError: the training cannot be shared, or another rank cannot make it.
    """
    ranks = _joined
    if ranks.count == 1:
        return
    if not isinstance(engine, BatchedEngine):
        raise InputError.because(
            "the reference engine does one draw after the other and is not shared among ranks. Use "
            'run.engine = "batched", or start it without torchrun.'
        )
    if any(job.optimiser.local is not None for job in jobs):
        raise InputError.because(
            "local steps with a rule (optimiser.local) are not shared among ranks, which know of "
            "no controls. Start it without torchrun."
        )
    told = [_described(job) for job in jobs]
    device = jobs[0].device
    ranks.tell(jobs=told, device=device.partition(":")[0], micro_batch=engine.micro_batch)
    mine = device in ("cuda", f"cuda:{_local_rank()}") and own_gpu() and dist.is_nccl_available()
    directly = all([mine, *ranks.answers()])
    ranks.tell(directly=directly)
    ranks.use_gpus(directly)
    ranks.shared, engine.ranks = True, ranks
    parts = engine.parts_of(0)
    if parts is not None and parts < ranks.count:
        logging.getLogger("dpcohort").info(
            "a round of this training has %d part(s) to share, and there are %d ranks: the others "
            "wait", parts, ranks.count,
        )  # fmt: skip


def _described(job: Job) -> dict[str, Any]:
    """All that another rank needs to make the same job, beside the data."""
    if job.source is None:
        raise InputError.because(
            "only the training of a configuration is shared among ranks. Start it without torchrun."
        )
    with TemporaryDirectory() as folder:
        job.plan.save(Path(folder) / "plan.json")
        plan = (Path(folder) / "plan.json").read_text()
    return {
        "config": config_for_folder(*job.source[:2], Path.cwd()),
        "plan": plan,
        "seed": job.seed,
        "simulate": job.simulate,
        "after": None if job.after is None else str(job.after),
        "settings": settings_sha256(job.settings()),
        "consent": allowed_names(),
    }


class _Worker:
    """Another rank than the first: does what it is told until it is told to end."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._data: dict[str, Dataset] = {}
        self._jobs: list[Job] = []
        self._engine: BatchedEngine | None = None
        self._parameters: list[torch.Tensor] = []

    def serve(self) -> int:
        """Work to the end, and return the first rank's exit code."""
        warnings.simplefilter("ignore")  # the first rank warns
        try:
            while "end" not in (order := self._ranks.hear()):
                self._do(order)
        except KeyboardInterrupt:
            return _STOPPED
        except LostRankError:
            code = self._ranks.last_word()
            if code is None:
                words = "the first rank has ended, or cannot be reached any more. Nothing is lost "
                words += "here: the first rank alone writes."
                print(f"error: rank {self._ranks.rank}: {words}", file=sys.stderr)
            return 1 if code is None else code
        finally:
            self._ranks.leave()
        return int(order["end"])

    def _do(self, order: Mapping[str, Any]) -> None:
        try:
            if "jobs" in order:
                self._prepare(order)
            elif "directly" in order:
                self._ranks.use_gpus(order["directly"])
            else:
                self._compute(order["round"], order["clients"])
        except LostRankError:
            raise
        except Exception as error:  # the first rank tells it, and ends all
            self._ranks.refuse(*self._failure(error))

    def _prepare(self, order: Mapping[str, Any]) -> None:
        self._engine, self._jobs = None, []
        device, has_own = order["device"], False
        if device != "cpu" and torch.cuda.is_available():
            torch.cuda.set_device(_local_rank() % torch.cuda.device_count())
            has_own = own_gpu()
        self._jobs = [self._job(told, device) for told in order["jobs"]]
        engine, _ = engine_of(self._jobs, micro_batch=order["micro_batch"])
        assert isinstance(engine, BatchedEngine)
        # Each in memory of its own, as on the first rank: bits may depend on how numbers lie.
        self._parameters = [state.parameters for state in engine.initial_states()]
        self._engine, engine.ranks = engine, self._ranks
        self._ranks.answer(int(has_own))

    def _job(self, told: Mapping[str, Any], device: str) -> Job:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            path.write_text(told["plan"])
            plan = Plan.load(path)
        plan._mark_certified()  # by the first rank; its hash is in the settings
        names, modules = told["consent"]
        typed(*names)
        allow_code(*modules)
        config = loads_config(told["config"])
        key = repr((config.data, config.task))
        if key not in self._data:
            self._data = {key: configured_data(config, plan.population.ids)}
        job = configured_job(
            config,
            data=self._data[key],
            shift=told["seed"] - config.run.seed,
            device=device,
            simulate=told["simulate"],
            plan=plan,
            after=None if told["after"] is None else Path(told["after"]),
        )
        if settings_sha256(job.settings()) != told["settings"]:
            raise InputError.because(
                "the configuration makes another training here: its files differ from those of the "
                "first rank, or the command trains on other records or settings than it says. Give "
                "every rank the same files, or start it without torchrun."
            )
        return job

    def _compute(self, round: int, clients: Sequence[Sequence[int]]) -> None:
        assert self._engine is not None
        parameters = [self._ranks.copy_from_first(one) for one in self._parameters]
        cohorts = [
            cohort_of(job.plan, round, np.array(drawn, dtype=np.int64))
            for job, drawn in zip(self._jobs, clients, strict=True)
        ]
        self._engine.updates(parameters, cohorts)

    def _failure(self, error: Exception) -> tuple[int, str]:
        """Exit code and words of an error, privately without its text."""
        if isinstance(error, DpcohortError):
            return error.exit_code, str(error)
        words = exhausted(error) or failure_on_records(error, self._jobs)
        if words is None:
            traceback.print_exception(error)
            words = f"{type(error).__name__}: {error}"
        return InputError.exit_code, words


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))

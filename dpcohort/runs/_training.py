# SPDX-License-Identifier: Apache-2.0
"""``train``: execute a plan, write the run down, survive a crash; several plans side by side."""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Unpack

from torch import nn

from dpcohort.atomic_file import owner_only
from dpcohort.config import Config
from dpcohort.consent import typed
from dpcohort.data import Dataset
from dpcohort.engine import (
    CohortUpdates,
    Evaluator,
    ServerStep,
    Trainer,
    train_rounds,
)
from dpcohort.errors import InputError
from dpcohort.models._weights import frozen_sha256
from dpcohort.plan import Plan
from dpcohort.progress import Progress, silent
from dpcohort.runs._config_data import configured_data
from dpcohort.runs._config_job import configured_job
from dpcohort.runs._configured import combinations
from dpcohort.runs._execution import engine_of, with_failures
from dpcohort.runs._folder import (
    is_run,
)
from dpcohort.runs._job import Job, JobOptions, make_job
from dpcohort.runs._provenance import HOW_TO_SIMULATE
from dpcohort.runs._ranks import share
from dpcohort.runs._recorder import Recorder, closing
from dpcohort.runs._run import Callback, Run
from dpcohort.runs._sweep import Workers


def train(
    plan: Plan,
    model: str | nn.Module,
    data: str | Dataset,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    **options: Unpack[JobOptions],
) -> Run:
    """Execute a plan (Algorithm 1).

    Args:
        plan: cohorts, noise, clip; its dimension must be the model's.
        model: a name for ``build_model``, or a module; a module is not changed.
        data: a data set, or the name of one.
        out: the run folder to write; None writes nothing.
        resume: continue the run in ``out``, from its last whole checkpoint; without one, begin.
        callbacks: called after each round; see ``Callback``.
        options: the others, all with defaults: `JobOptions` has the list.

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
    typed(*(one for one in (model, data, options.get("aggregation")) if isinstance(one, str)))
    job = make_job(plan, model, data, **options)
    return train_job(job, out=out, resume=resume, callbacks=callbacks)


def train_job(
    job: Job,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Run:
    """As ``train``, for a job that is already made."""
    return _trained([job], [out], tuple(callbacks), resume=resume)[0]


def train_side_by_side(
    jobs: Sequence[Job],
    *,
    outs: Sequence[str | Path | None] | None = None,
    callbacks: Iterable[Callback] = (),
) -> list[Run]:
    """Train all jobs together; each gives the result it would give alone.

    Args:
        jobs: with the same model and data set and as many rounds and local steps.
        outs: a run folder for each, None for those that are not written.
        callbacks: called after each round of each job.

    Raises:
        InputError: the jobs do not go together, or a model stopped being finite.
    """
    _refuse_repetitions(jobs)
    _check_side_by_side(jobs)
    return _trained(jobs, outs or [None] * len(jobs), tuple(callbacks))


def _trained(
    jobs: Sequence[Job],
    outs: Sequence[str | Path | None],
    callbacks: Sequence[Callback],
    *,
    resume: bool = False,
) -> list[Run]:
    """Train jobs that go together, or one alone."""
    first = jobs[0]
    _check_callbacks(callbacks, private=first.private)
    engine, experiments = engine_of(jobs)
    if engine.isolated is not None:
        slow = engine.isolated.path.kind != "stacked"
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
            callbacks=callbacks,
        )
    return [part.run for part in parts]


def _check_callbacks(callbacks: Sequence[Callback], *, private: bool) -> None:
    """Refuse what is no callback, or would write what stays secret, before anything is spent."""
    invalid = [one for one in callbacks if not hasattr(one, "on_round")]
    if invalid:
        allowed = "objects with a method on_round(record, run)"
        raise InputError("callbacks", given=invalid[0], allowed=allowed)
    if private and any(getattr(one, "writes_times", False) for one in callbacks):
        raise InputError.because(
            "A private training refuses callbacks that write when rounds ended (Weights & Biases): "
            "times tell how many records were drawn. Nothing was spent. Log the run when it is "
            "finished: docs/how-to/notebook.md. TensorBoard does without times."
        )


def run_rounds(
    parts: Sequence[Recorder],
    trainer: Trainer,
    steps: Sequence[ServerStep],
    *,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 1,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Every training: choose, count on disk, train, combine, step, check, write down.

    Args:
        parts: what is trained, at the same round; one training is the case of one part.
        trainer: computes their updates.
        steps: what the server does with the updates of each.
        evaluator: test set, None for none.
        evaluate_every: rounds between evaluations.
        callbacks: called after each round of each part.
    """

    def observe(arrived: Sequence[CohortUpdates | None]) -> None:
        for part, updates in zip(parts, arrived, strict=True):
            part.observe(updates)

    _give_back_memory()
    rounds = train_rounds(
        trainer,
        steps,
        [part.state for part in parts],
        rounds=parts[0].job.plan.training.rounds,
        choose=lambda round: [part.choose(round) for part in parts],
        observe=observe,
        evaluator=evaluator,
        evaluate_every=evaluate_every,
    )
    for records in with_failures(rounds, [part.job for part in parts if isinstance(part.job, Job)]):
        for part, record in zip(parts, records, strict=True):
            line = part.record(record)
            for callback in callbacks:
                callback.on_round(line, part.run)
    for part in parts:
        part.finish(part.state)


def _give_back_memory() -> None:
    """Give the system what planning and checking took and freed; glibc would keep it for later."""
    if sys.platform == "linux":
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _refuse_repetitions(jobs: Sequence[Job]) -> None:
    """Refuse private runs beside others: each releases a model, and spends every budget again."""
    if not jobs:
        raise InputError("jobs", given=[], allowed="at least one")
    if any(job.private for job in jobs):
        raise InputError.because(
            "runs side by side are simulations: each private run releases a model and spends every "
            f"budget again, so train it alone. {HOW_TO_SIMULATE}"
        )


def _check_side_by_side(jobs: Sequence[Job]) -> None:
    first = jobs[0]
    moments = first.model_options.get("second_moments")
    if any(
        job.data is not first.data or job.evaluate_every != first.evaluate_every for job in jobs
    ):
        raise InputError.because("runs side by side need the same data set and evaluate as often.")
    if len({frozen_sha256(job.model) for job in jobs}) > 1:
        raise InputError.because(
            "runs side by side need the same frozen parameters; these differ with the seed. "
            "Give them in a weights file, or train the runs one by one."
        )
    if any(job.model_options.get("second_moments") != moments for job in jobs):
        raise InputError.because("runs side by side need the same model.options.second_moments.")
    if any(job.engine != "batched" or job.device != first.device for job in jobs):
        raise InputError.because("runs side by side use the batched engine on one device.")


def train_grid(
    config: Config,
    *,
    seeds: int = 5,
    out: Path | None = None,
    device: str | None = None,
    callbacks: Iterable[Callback] = (),
    workers: Workers | None = None,
    progress: Progress = silent,
) -> dict[str, list[Run]]:
    """Train all combinations; the runs of one differ only in their seed.

    Args:
        config: with a [grid].
        seeds: runs of each combination; seed i of one and seed i of another start alike.
        out: keep the runs in folders ``out/COMBINATION/seed-N``; finished ones are not repeated.
        device: instead of the configuration's.
        callbacks: called after each round of each run, whose label is its combination; not where
            runs are trained in other processes.
        workers: processes that train them; None is this one alone.
        progress: told which combination had a run done, and how many are.

    Returns:
        The runs of each combination, by its name, in the order of the grid.
    """
    loaded: dict[str, Dataset] = {}
    prepared: dict[str, list[Job]] = {}
    # All of it is checked and planned before any of it is trained.
    for name, combination in list(combinations(config)):
        key = repr((combination.data, combination.task, combination.contract.unit.name))
        if key not in loaded:
            loaded[key] = configured_data(combination)
        prepared[name] = [
            configured_job(combination, data=loaded[key], shift=i, device=device, label=name)
            for i in range(seeds)
        ]
    workers, observers = workers or Workers(), tuple(callbacks)
    # Runs go side by side in one process, and one by one where there are more.
    cells = [
        (name, group)
        for name, jobs in prepared.items()
        for group in ([[job] for job in jobs] if workers.are_elsewhere else [jobs])
    ]
    trained: dict[int, list[Run]] = {}
    for place, runs in workers.results(
        [partial(train_group, name, group, out) for name, group in cells],
        callbacks=lambda _: observers,
    ):
        _refuse_runs_elsewhere(runs)
        trained[place] = runs
        progress(cells[place][0], len(trained), len(cells))
    return {
        name: [run for place, (of, _) in enumerate(cells) if of == name for run in trained[place]]
        for name in prepared
    }


def _refuse_runs_elsewhere(runs: Sequence[Run]) -> None:
    """Refuse runs whose folders a process on another machine wrote there."""
    for path in (run.path for run in runs):
        if path is not None and not path.exists():
            raise InputError(
                "--out", given=path, allowed="a folder that all machines of the cluster share"
            )


def train_group(
    name: str, jobs: list[Job], out: Path | None = None, callbacks: Iterable[Callback] = ()
) -> list[Run]:
    """Train jobs that differ in their seed, side by side where that is possible.

    Args:
        name: of the group; its runs are kept in a folder of that name.
        jobs: one a seed.
        out: keep the runs in folders ``out/NAME/seed-N``; finished ones are not repeated.
        callbacks: called after each round of each run.
    """
    _refuse_repetitions(jobs)
    places: list[Path | None] = [None] * len(jobs)
    if out is not None:
        places = [out / folder_name(name) / f"seed-{job.seed}" for job in jobs]
    if jobs[0].engine == "batched" and not any(p is not None and is_run(p) for p in places):
        return train_side_by_side(jobs, outs=places, callbacks=callbacks)
    return [
        train_job(job, out=place, resume=place is not None, callbacks=callbacks)
        for job, place in zip(jobs, places, strict=True)
    ]


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

# SPDX-License-Identifier: Apache-2.0
"""A recipe's cells trained: everything prepared first, then as many side by side as go together.

All plans, partitions and models are made, and so checked, before the first round of the first one.
Trainings that share data, model, rounds and evaluation are stacked; on a CPU by cell, so that an
interruption loses little, on an accelerator many cells at a time.

What was measured in a cell is one small JSON file a cell, so that a stopped command goes on. A
stored measurement is used again only if the hash of the cell's settings is the same: after an edit
of the recipe the cell is measured anew, and cells the edit does not touch are not.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from dpcohort.atomic_file import write_text
from dpcohort.config import Config
from dpcohort.data import Dataset
from dpcohort.errors import DivergedError, FileFormatError, InputError
from dpcohort.limits import LARGEST_CELL_FILE
from dpcohort.metrics import Metric, main_metric
from dpcohort.progress import Progress, silent
from dpcohort.runs import configured_data
from dpcohort.text_files import parse_json, read_utf8
from dpcohort_lab.recipes.recipe import Cell, Recipe

if TYPE_CHECKING:
    from dpcohort.runs import Callback, Job, Run, Workers

_FORMAT = "dpcohort cell"
_SCHEMA = 1


class Measurement(BaseModel):
    """One training of a cell.

    Attributes:
        seed: which repetition.
        accuracy: test accuracy in per cent: of the average of iterates where one is kept. Of a task
            with another main metric, that.
        last: the same of the last iterate.
        curve: (rounds done, the same) at every evaluation.
        clients_drawn: private clients that were drawn at least once.
        clients_lifted: clients whose paper noise did not certify and was raised to the tight noise.
        promises_hold: every receipt certifies at most the client's declared budget; raw losses of
            the biased baseline are outside of any.
        seconds: training time; of runs side by side, each has an equal share.
        device: where it ran.
        plan: hash of its plan.

    Example:
        >>> Measurement(seed=0, accuracy=51.5, last=50.0, curve=((10, 51.5),), clients_drawn=80,
        ...     clients_lifted=0, promises_hold=True, seconds=1.5, device="cpu", plan="ab").last
        50.0
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    seed: int
    accuracy: float
    last: float
    curve: tuple[tuple[int, float], ...]
    clients_drawn: int
    clients_lifted: int
    promises_hold: bool
    seconds: float
    device: str
    plan: str


def read_cell(path: Path, cell: Cell) -> dict[int, Measurement]:
    """What a file holds of this cell by seed, if it was measured with the same settings.

    Raises:
        FileFormatError: the file is no file of measurements.
    """
    if not path.exists():
        return {}
    try:
        stored = parse_json(read_utf8(path, at_most_bytes=LARGEST_CELL_FILE))
        head = [stored[key] for key in ("format", "schema", "settings_sha256")]
        if head != [_FORMAT, _SCHEMA, cell.sha256]:
            return {}
        found = [Measurement.model_validate_json(json.dumps(m)) for m in stored["measurements"]]
        return {measurement.seed: measurement for measurement in found}
    except FileFormatError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        odd = isinstance(error, ValidationError)
        words = "a measurement is not as it was written" if odd else error
        raise FileFormatError(
            path, f"this file of measurements is broken ({words}); delete it and run again"
        ) from None


def write_cell(path: Path, cell: Cell, measured: Mapping[int, Measurement]) -> None:
    """Write what was measured of a cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "format": _FORMAT,
        "schema": _SCHEMA,
        "cell": cell.label,
        "settings_sha256": cell.sha256,
        "measurements": [measured[seed].model_dump(mode="json") for seed in sorted(measured)],
    }
    write_text(path, json.dumps(content, indent=1) + "\n")


#: Parameters of all models of a stack together: bounds the memory of an accelerator, and what an
#: interruption loses; large models fill it with few.
_STACK_PARAMETERS = 3_000_000
_CPU_STACK = 6


#: Data of a configuration, and where these are not its own, its clients and their partition.
Holdings = Callable[[Config], Mapping[str, Any]]
#: One training to be done: a cell, a repetition, and the job that does it.
Work = tuple[Cell, int, "Job"]


def measure(
    recipe: Recipe,
    *,
    folder: Path | None = None,
    device: str | None = None,
    workers: Workers | None = None,
    progress: Progress = silent,
) -> dict[str, dict[int, Measurement]]:
    """Train what is not measured yet.

    Args:
        recipe: in the form that is wanted.
        folder: where measurements are kept; what is there already is not trained again.
        device: instead of the recipe's.
        workers: processes that train; None is this one alone.
        progress: told what is trained, and how many rounds of all trainings are done.

    Returns:
        All measurements, by the cell's slug and the seed.

    Raises:
        DataMissingError: a data set is not on this machine; nothing was trained.
        InputError: a cell cannot be trained; nothing was trained.
    """
    files = {} if folder is None else {c.slug: folder / f"{c.slug}.json" for c in recipe.cells}
    known = {c.slug: read_cell(files[c.slug], c) if files else {} for c in recipe.cells}
    seeds = range(recipe.seeds)
    missing = [(c, seed) for c in recipe.cells for seed in seeds if seed not in known[c.slug]]
    works = prepare(missing, device=device)
    for _, _, job in works:
        if not main_metric(job.task).is_share:
            raise InputError.because(
                f"recipes are judged by accuracy, and this task ({job.task.kind}) has none. "
                "Compare rules on it instead: dpcohort compare-rules"
            )
    for (cell, seed, _), found in train_works(works, workers=workers, progress=progress):
        known[cell.slug][seed] = found
        if files:
            write_cell(files[cell.slug], cell, known[cell.slug])
    return {slug: dict(sorted(by_seed.items())) for slug, by_seed in known.items()}


def prepare(
    wanted: Sequence[tuple[Cell, int]],
    *,
    device: str | None = None,
    holdings: Holdings | None = None,
) -> list[Work]:
    """Load the data and make every job; whatever cannot be trained is found here.

    Args:
        wanted: cells and seeds.
        device: instead of the recipe's.
        holdings: data, clients and partition of a configuration; by default its own.
    """
    held = loaded_once(configured_data) if holdings is None else holdings
    alike: dict[str, Job] = {}
    return [(cell, shift, _job(cell, shift, held, device, alike)) for cell, shift in wanted]


def loaded_once(load: Callable[[Config], Dataset]) -> Holdings:
    """What configurations train on, each data set loaded once."""
    loaded: dict[str, Mapping[str, Any]] = {}

    def holdings(config: Config) -> Mapping[str, Any]:
        key = f"{config.data.name if config.data else ''} {config.data and config.data.dir}"
        if key not in loaded:
            loaded[key] = {"data": load(config)}
        return loaded[key]

    return holdings


def _job(
    cell: Cell, shift: int, holdings: Holdings, device: str | None, alike: dict[str, Job]
) -> Job:
    """One repetition of a cell; those that differ in the optimiser alone share all the rest."""
    from dpcohort.runs import ConfigSource, configured_job, configured_optimiser

    config = cell.seeded(shift)
    held = holdings(config)
    rest = {name: table for name, table in config.values.items() if name != "optimiser"}
    key = json.dumps([cell.mechanism, rest], sort_keys=True)
    try:
        if key not in alike:
            alike[key] = configured_job(config, device=device, label=cell.mechanism, **held)
        optimiser = configured_optimiser(config.optimiser, clip=config.training.clip)
        return replace(alike[key], optimiser=optimiser, source=ConfigSource.of(config))
    except InputError as error:
        error.args = (f"cell {cell.label}: {error}",)
        raise


def train_works(
    works: Sequence[Work],
    *,
    workers: Workers | None = None,
    progress: Progress = silent,
) -> Iterator[tuple[Work, Measurement]]:
    """Train all; each is given as soon as its stack is done.

    Args:
        works: what to train.
        workers: processes that train; None is this one alone.
        progress: told how far it is.

    Raises:
        DivergedError: a training left all numbers.
    """
    receipts: dict[str, tuple[int, bool]] = {}
    for stack, trained in _train_stacks(works, workers, progress):
        if isinstance(trained, DivergedError):
            raise trained
        runs, seconds = trained
        for work, run in zip(stack, runs, strict=True):
            yield work, measured(work, run, seconds, receipts)


def score_works(
    works: Sequence[Work], *, workers: Workers | None = None, progress: Progress = silent
) -> Iterator[tuple[Work, float | None]]:
    """The accuracy that each comes to, None where it diverged; no receipt is checked."""
    for stack, trained in _train_stacks(works, workers, progress):
        if isinstance(trained, DivergedError) and len(stack) > 1:  # those beside it stopped too
            for work in stack:
                yield from score_works([work], workers=workers)
            continue
        for place, work in enumerate(stack):
            try:
                if isinstance(trained, DivergedError):
                    raise trained
                runs, seconds = trained
                yield work, measured(work, runs[place], seconds, None).accuracy
            except DivergedError:
                yield work, None


#: Runs of jobs side by side and the seconds that each took; or that one of them diverged.
_Trained = tuple[list["Run"], float] | DivergedError


def _train_stacks(
    works: Sequence[Work], workers: Workers | None, progress: Progress
) -> Iterator[tuple[list[Work], _Trained]]:
    from dpcohort.runs import EachRound, Workers

    workers = workers or Workers()
    total = sum(job.plan.training.rounds for _, _, job in works)
    done = 0
    every = list(stacks(works, most=1 if workers.are_elsewhere else None))

    def observers(place: int) -> list[EachRound]:
        stack, before = every[place], done
        (first, _, job), each = stack[0], len(stack)
        name = first.label + (f" and {each - 1} more" if each > 1 else "")
        # What is done before the first round: features of all records may take minutes.
        features = "" if job.trained is job.model else "features of all records, then "
        progress(f"{features}{name}", done, total)
        return [EachRound(each, lambda rounds, _: progress(name, before + rounds * each, total))]

    cells = [partial(_trained, [job for _, _, job in stack]) for stack in every]
    for place, trained in workers.results(cells, callbacks=observers):
        stack = every[place]
        done += sum(job.plan.training.rounds for _, _, job in stack)
        if workers.are_elsewhere:
            progress(stack[0][0].label, done, total)
        yield stack, trained


def _trained(jobs: Sequence[Job], *, callbacks: Sequence[Callback] = ()) -> _Trained:
    from dpcohort.runs import train_side_by_side

    began = time.perf_counter()
    try:
        runs = train_side_by_side(jobs, callbacks=callbacks)
    except DivergedError as error:
        return error
    return runs, (time.perf_counter() - began) / len(jobs)


def stacks(works: Sequence[Work], most: int | None = None) -> Iterator[list[Work]]:
    """The works in groups that run side by side, of ``most`` or as many as are fast."""
    groups: dict[tuple[Any, ...], list[Work]] = {}
    for work in works:
        cell, _, job = work
        training, options = job.plan.training, repr(sorted(job.model_options.items()))
        alike = (id(job.data), job.model_name, options, training.rounds, training.local_steps)
        groups.setdefault((*alike, job.evaluate_every, cell.adaptive), []).append(work)
    for group in groups.values():
        (_, _, job), size = group[0], most or _CPU_STACK
        if most is None and job.device != "cpu":
            size = max(1, _STACK_PARAMETERS // job.plan.training.dimension)
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _device_name(device: str) -> str:
    """What a reader of the results wants to know: which GPU, or that it was none."""
    if not device.startswith("cuda"):
        return device
    import torch

    return str(torch.cuda.get_device_name(torch.device(device)))


def measured(
    work: Work, run: Run, seconds: float, known: dict[str, tuple[int, bool]] | None
) -> Measurement:
    """What is kept of a training, shares in per cent, rounded to what test records can tell.

    Args:
        work: what was trained.
        run: the finished training.
        seconds: how long it took.
        known: receipts of runs that spent the same, which share them; None checks none and says
            that no promise was shown to hold.
    """
    _, shift, job = work
    drawn, holds = (0, False) if known is None else _certified(run, known)
    curve = run.curve()
    last = next(line.test for line in reversed(run.history) if line.test is not None)
    points = zip(curve.rounds.tolist(), curve.score.tolist(), strict=True)
    metric = main_metric(job.task)
    if not (math.isfinite(run.test.score) and math.isfinite(last.score)):
        raise DivergedError.because(f"{job.title} left all numbers: its {metric.words} is none.")
    return Measurement(
        seed=shift,
        accuracy=_rounded(metric, run.test.score, 4),
        last=_rounded(metric, last.score, 4),
        curve=tuple((rounds, _rounded(metric, score, 3)) for rounds, score in points),
        clients_drawn=drawn,
        clients_lifted=int(run.plan.noise.lifted.sum()),
        promises_hold=holds,
        seconds=round(seconds, 3),
        device=_device_name(job.device),
        plan=run.plan.sha256,
    )


def _rounded(metric: Metric, value: float, decimals: int) -> float:
    """A share in per cent with some decimals; of anything else six digits."""
    return round(100 * value, decimals) if metric.is_share else float(f"{value:.6g}")


def _certified(run: Run, known: dict[str, tuple[int, bool]]) -> tuple[int, bool]:
    key = f"{run.plan.sha256} {run.ledger.draws.tolist()}"
    if key not in known:
        from dpcohort.runs import make_receipts

        drawn = np.flatnonzero(run.ledger.draws)
        found = make_receipts(run.plan, run.ledger.draws, clients=drawn)
        known[key] = (len(found), all(receipt.holds for receipt in found))
    return known[key]

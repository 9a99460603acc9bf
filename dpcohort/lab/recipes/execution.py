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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from dpcohort.atomic_file import write_text
from dpcohort.config import Config
from dpcohort.data import Dataset
from dpcohort.errors import FileFormatError, InputError
from dpcohort.lab.recipes.recipe import Cell, Recipe
from dpcohort.limits import LARGEST_CELL_FILE
from dpcohort.runs import configured_data
from dpcohort.text_files import parse_json, read_utf8

if TYPE_CHECKING:
    from dpcohort.runs import Job, Run

__all__ = [
    "CellStore",
    "Measurement",
    "Progress",
    "Work",
    "measure",
    "measured",
    "prepare",
    "stacks",
    "train_works",
]


_FORMAT = "dpcohort cell"
_SCHEMA = 1


class Measurement(BaseModel):
    """One training of a cell.

    Attributes:
        seed: which repetition.
        accuracy: test accuracy in per cent: of the average of iterates where one is kept.
        last: test accuracy of the last iterate, in per cent.
        curve: (rounds done, accuracy in per cent) at every evaluation.
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


class CellStore:
    """The measurements of one recipe, in a folder.

    Args:
        folder: where the files are; None keeps them in memory.

    Example:
        >>> CellStore(None).known
        {}
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        #: Every measurement by (slug, seed).
        self.known: dict[tuple[str, int], Measurement] = {}

    def load(self, cell: Cell) -> None:
        """Take over what a file holds of this cell, if it was measured with the same settings.

        Raises:
            FileFormatError: the file is no file of measurements.
        """
        path = self._path(cell)
        if path is None or not path.exists():
            return
        try:
            stored = parse_json(read_utf8(path, at_most_bytes=LARGEST_CELL_FILE))
            is_ours = stored["format"] == _FORMAT and stored["schema"] == _SCHEMA
            if is_ours and stored["settings_sha256"] == cell.sha256:
                for values in stored["measurements"]:
                    found = Measurement.model_validate_json(json.dumps(values))
                    self.known[cell.slug, found.seed] = found
        except FileFormatError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            odd = isinstance(error, ValidationError)
            words = "a measurement is not as it was written" if odd else error
            raise FileFormatError(
                path, f"this file of measurements is broken ({words}); delete it and run again"
            ) from None

    def add(self, cell: Cell, measurement: Measurement) -> None:
        """Keep a measurement, on disk as well."""
        self.known[cell.slug, measurement.seed] = measurement
        path = self._path(cell)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = sorted(
            (m for (slug, _), m in self.known.items() if slug == cell.slug), key=lambda m: m.seed
        )
        content = {
            "format": _FORMAT,
            "schema": _SCHEMA,
            "cell": cell.label,
            "settings_sha256": cell.sha256,
            "measurements": [m.model_dump(mode="json") for m in mine],
        }
        write_text(path, json.dumps(content, indent=1) + "\n")

    def of(self, cell: Cell, seeds: int) -> list[Measurement]:
        """The measurements of a cell for the seeds 0 to ``seeds`` - 1, as far as they are there."""
        found = (self.known.get((cell.slug, seed)) for seed in range(seeds))
        return [m for m in found if m is not None]

    def _path(self, cell: Cell) -> Path | None:
        return None if self._folder is None else self._folder / f"{cell.slug}.json"


#: Told rounds done, rounds in all (over all trainings), and what is being trained.
Progress = Callable[[int, int, str], None]

#: Parameters of all models of a stack together: bounds the memory of an accelerator, and what an
#: interruption loses; large models fill it with few.
_STACK_PARAMETERS = 3_000_000
_CPU_STACK = 6


@dataclass(frozen=True, eq=False)
class Work:
    """One training to be done: a cell, a repetition, and the job that does it."""

    cell: Cell
    shift: int
    job: Job

    @property
    def stack_key(self) -> tuple[Any, ...]:
        """Trainings with the same key may run side by side."""
        training = self.job.plan.training
        return (
            id(self.job.data),
            self.job.model_name,
            repr(sorted(self.job.model_options.items())),
            training.rounds,
            training.local_steps,
            self.job.evaluate_every,
            self.cell.adaptive,
        )


def measure(
    recipe: Recipe,
    *,
    folder: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> CellStore:
    """Train what is not measured yet.

    Args:
        recipe: in the form that is wanted.
        folder: where measurements are kept; what is there already is not trained again.
        device: instead of the recipe's.
        progress: told how far it is.

    Returns:
        All measurements.

    Raises:
        DataMissingError: a data set is not on this machine; nothing was trained.
        InputError: a cell cannot be trained; nothing was trained.
    """
    store = CellStore(folder)
    for cell in recipe.cells:
        store.load(cell)
    missing = [
        (cell, seed)
        for cell in recipe.cells
        for seed in range(recipe.seeds)
        if (cell.slug, seed) not in store.known
    ]
    for work, found in train_works(prepare(missing, device=device), progress=progress):
        store.add(work.cell, found)
    return store


def prepare(
    wanted: Sequence[tuple[Cell, int]],
    *,
    device: str | None = None,
    data: Callable[[Config], Dataset] = configured_data,
) -> list[Work]:
    """Load the data and make every job; whatever cannot be trained is found here."""
    loaded: dict[str, Dataset] = {}
    alike: dict[str, Job] = {}
    works = []
    for cell, shift in wanted:
        config = cell.seeded(shift)
        key = f"{config.data.name if config.data else ''} {config.data and config.data.dir}"
        if key not in loaded:
            loaded[key] = data(config)
        works.append(Work(cell, shift, _job(config, loaded[key], device, cell, alike)))
    return works


def _job(
    config: Config, data: Dataset, device: str | None, cell: Cell, alike: dict[str, Job]
) -> Job:
    """The job of a configuration; those that differ in the optimiser alone share all the rest."""
    from dpcohort.runs import configured_job, configured_optimiser

    rest = {name: table for name, table in config.values.items() if name != "optimiser"}
    key = json.dumps([cell.mechanism, rest], sort_keys=True)
    try:
        if key not in alike:
            alike[key] = configured_job(config, data=data, device=device, label=cell.mechanism)
        optimiser = configured_optimiser(config.optimiser, clip=config.training.clip)
        return replace(alike[key], optimiser=optimiser)
    except InputError as error:
        error.args = (f"cell {cell.label}: {error}",)
        raise


def train_works(
    works: Sequence[Work], *, progress: Progress | None = None, certify: bool = True
) -> Iterator[tuple[Work, Measurement]]:
    """Train all; each is given as soon as its stack is done.

    Args:
        works: what to train.
        progress: told how far it is.
        certify: check every receipt; a search, whose models are thrown away, may leave it.
    """
    from dpcohort.runs import train_side_by_side

    total = sum(work.job.plan.training.rounds for work in works)
    done = 0
    receipts: dict[str, tuple[int, bool]] | None = {} if certify else None
    for stack in stacks(works):

        def told(rounds: int, _: Any = None, before: int = done, at: list[Work] = stack) -> None:
            if progress is not None:
                progress(before + rounds * len(at), total, _stack_name(at))

        if progress is not None:
            progress(done, total, _first_word(stack))
        began = time.perf_counter()
        runs = train_side_by_side([work.job for work in stack], on_round=told)
        seconds = (time.perf_counter() - began) / len(stack)
        done += sum(work.job.plan.training.rounds for work in stack)
        for work, run in zip(stack, runs, strict=True):
            yield work, measured(work, run, seconds, receipts)


def stacks(works: Sequence[Work]) -> Iterator[list[Work]]:
    """The works in groups that run side by side."""
    groups: dict[tuple[Any, ...], list[Work]] = {}
    for work in works:
        groups.setdefault(work.stack_key, []).append(work)
    for group in groups.values():
        most = _CPU_STACK
        if group[0].job.device != "cpu":
            most = max(1, _STACK_PARAMETERS // group[0].job.plan.training.dimension)
        for start in range(0, len(group), most):
            yield group[start : start + most]


def _first_word(stack: list[Work]) -> str:
    """What is done before the first round: fixed features of all records may take minutes."""
    job = stack[0].job
    features = "" if job.trained is job.model else "features of all records, then "
    return f"{features}{_stack_name(stack)}"


def _stack_name(stack: list[Work]) -> str:
    more = f" and {len(stack) - 1} more" if len(stack) > 1 else ""
    return f"{stack[0].cell.label}{more}"


def _device_name(device: str) -> str:
    """What a reader of the results wants to know: which GPU, or that it was none."""
    if not device.startswith("cuda"):
        return device
    import torch

    return str(torch.cuda.get_device_name(torch.device(device)))


def measured(
    work: Work, run: Run, seconds: float, known: dict[str, tuple[int, bool]] | None
) -> Measurement:
    """What is kept of a training, in per cent, rounded: 10,000 test records have two decimals.

    Args:
        work: what was trained.
        run: the finished training.
        seconds: how long it took.
        known: receipts of runs that spent the same, which share them; None checks none and says
            that no promise was shown to hold.
    """
    drawn, holds = (0, False) if known is None else _certified(run, known)
    curve = run.curve()
    last = next(line.test for line in reversed(run.history) if line.test is not None)
    points = zip(curve.rounds.tolist(), curve.accuracy.tolist(), strict=True)
    return Measurement(
        seed=work.shift,
        accuracy=round(100 * run.test_accuracy, 4),
        last=round(100 * last.accuracy, 4),
        curve=tuple((rounds, round(100 * accuracy, 3)) for rounds, accuracy in points),
        clients_drawn=drawn,
        clients_lifted=int(run.plan.noise.lifted.sum()),
        promises_hold=holds,
        seconds=round(seconds, 3),
        device=_device_name(work.job.device),
        plan=run.plan.sha256,
    )


def _certified(run: Run, known: dict[str, tuple[int, bool]]) -> tuple[int, bool]:
    key = f"{run.plan.sha256} {run.ledger.draws.tolist()}"
    if key not in known:
        from dpcohort.runs import make_receipts

        drawn = np.flatnonzero(run.ledger.draws)
        found = make_receipts(run.plan, run.ledger.draws, clients=drawn)
        known[key] = (len(found), all(receipt.holds for receipt in found))
    return known[key]

# SPDX-License-Identifier: Apache-2.0
"""A recipe's cells trained: everything prepared first, then as many side by side as go together.

All plans, partitions and models are made, and so checked, before the first round of the first one.
Trainings that share data, model, rounds and evaluation are stacked; on a CPU by cell, so that an
interruption loses little, on an accelerator many cells at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcohort.config import Config
from dpcohort.data import Dataset
from dpcohort.errors import InputError
from dpcohort.lab.recipes.cell_store import CellStore, Measurement
from dpcohort.lab.recipes.outcome import Outcome, outcome_of_run
from dpcohort.lab.recipes.recipe import Cell, Recipe
from dpcohort.runs.configured_plan import configured_data

if TYPE_CHECKING:
    from dpcohort.runs.job import Job

__all__ = ["Progress", "Work", "measure", "prepare", "stacks", "train_works"]

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


Stack = list[Work]


def measure(
    recipe: Recipe,
    *,
    folder: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    data: Callable[[Config], Dataset] | None = None,
) -> CellStore:
    """Train what is not measured yet.

    Args:
        recipe: in the form that is wanted.
        folder: where measurements are kept; what is there already is not trained again.
        device: instead of the recipe's.
        progress: told how far it is.
        data: gives a configuration's data set; by default the whole one.

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
    works = prepare(missing, device=device, data=data)
    for work, found in train_works(works, progress=progress):
        store.add(work.cell, found)
    return store


def prepare(
    wanted: Sequence[tuple[Cell, int]],
    *,
    device: str | None = None,
    data: Callable[[Config], Dataset] | None = None,
) -> list[Work]:
    """Load the data and make every job; whatever cannot be trained is found here."""
    loaded: dict[str, Dataset] = {}
    alike: dict[str, Job] = {}
    works = []
    for cell, shift in wanted:
        config = cell.seeded(shift)
        key = f"{config.data.name if config.data else ''} {config.data and config.data.dir}"
        if key not in loaded:
            loaded[key] = (data or configured_data)(config)
        works.append(Work(cell, shift, _job(config, loaded[key], device, cell, alike)))
    return works


def _job(
    config: Config, data: Dataset, device: str | None, cell: Cell, alike: dict[str, Job]
) -> Job:
    """The job of a configuration; those that differ in the optimiser alone share all the rest."""
    from dpcohort.runs.configured import configured_job, configured_optimiser

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
    total = sum(work.job.plan.training.rounds for work in works)
    done = 0
    receipts: dict[str, tuple[int, bool]] | None = {} if certify else None
    for stack in stacks(works):

        def told(rounds: int, _: Any = None, before: int = done, at: Stack = stack) -> None:
            if progress is not None:
                progress(before + rounds * len(at), total, _stack_name(at))

        if progress is not None:
            progress(done, total, _first_word(stack))
        began = time.perf_counter()
        outcomes = _train(stack, told, receipts)
        seconds = (time.perf_counter() - began) / len(stack)
        done += sum(work.job.plan.training.rounds for work in stack)
        for work, found in zip(stack, outcomes, strict=True):
            yield work, _measured(work, found, seconds)


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


def _first_word(stack: Stack) -> str:
    """What is done before the first round: fixed features of all records may take minutes."""
    job = stack[0].job
    features = "" if job.trained is job.model else "features of all records, then "
    return f"{features}{_stack_name(stack)}"


def _stack_name(stack: Stack) -> str:
    more = f" and {len(stack) - 1} more" if len(stack) > 1 else ""
    return f"{stack[0].cell.label}{more}"


def _train(
    stack: Stack, told: Callable[..., None], receipts: dict[str, tuple[int, bool]] | None
) -> list[Outcome]:
    from dpcohort.runs.training import train_side_by_side

    runs = train_side_by_side([work.job for work in stack], on_round=told)
    return [outcome_of_run(run, receipts) for run in runs]


def _device_name(device: str) -> str:
    """What a reader of the results wants to know: which GPU, or that it was none."""
    if not device.startswith("cuda"):
        return device
    import torch

    return str(torch.cuda.get_device_name(torch.device(device)))


def _measured(work: Work, found: Outcome, seconds: float) -> Measurement:
    """In per cent, rounded: 10,000 test records have two decimals."""
    return Measurement(
        seed=work.shift,
        accuracy=round(100 * found.accuracy, 4),
        last=round(100 * found.last, 4),
        curve=tuple((rounds, round(100 * accuracy, 3)) for rounds, accuracy in found.curve),
        clients_drawn=found.clients_drawn,
        clients_lifted=found.clients_lifted,
        promises_hold=found.promises_hold,
        seconds=round(seconds, 3),
        device=_device_name(work.job.device),
        plan=found.plan,
    )

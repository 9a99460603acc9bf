# SPDX-License-Identifier: Apache-2.0
"""Every combination of a configuration's [grid], each with the same seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from dpcohort.config import Config
from dpcohort.data import Dataset
from dpcohort.errors import InputError
from dpcohort.runs.configured import combinations, configured_job
from dpcohort.runs.configured_plan import configured_data
from dpcohort.runs.folder import RunFolder
from dpcohort.runs.job import Job
from dpcohort.runs.run import Run
from dpcohort.runs.training import train_job, train_side_by_side

__all__ = ["folder_name", "train_grid", "train_group"]

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

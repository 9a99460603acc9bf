# SPDX-License-Identifier: Apache-2.0
"""The search for settings the paper leaves out, on held-out training records, written down.

Every setting that is tried is in the file, with its score on each seed: accuracy in per cent, or
what else the task is judged by (`dpcohort.metrics.main_metric`). The best mean is chosen. The test
set is never looked at. The search sees the clients' records and is not charged to their
budgets, as in the paper; someone who may not do that must take settings from public data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort.config import Config
from dpcohort.data import Dataset
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CELLS
from dpcohort.metrics import METRICS, Metric, main_metric
from dpcohort.progress import Progress, silent
from dpcohort.runs import Workers, configured_data, held_out_within, mean_interval
from dpcohort_lab.checks import number, whole_number
from dpcohort_lab.recipes.execution import Holdings, loaded_once, prepare, score_works
from dpcohort_lab.recipes.judgement import write_lines
from dpcohort_lab.recipes.recipe import MECHANISM, Cell, Recipe, SearchSection, as_changes

UNCHARGED = (
    "Scored on held-out training records, never the test set; not charged to the clients' budgets, "
    "as in the paper."
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One setting, and how well it did.

    Attributes:
        settings: the changes, as ``--set`` takes them.
        scores: on held-out records, of each cell and seed, shares in per cent; None if training
            diverged.
        metric: what is scored.

    Example:
        >>> Tried(settings=("training.clip=1",), scores=(80.0, 90.0)).mean
        85.0
    """

    settings: tuple[str, ...]
    scores: tuple[float | None, ...]
    metric: Metric = METRICS["accuracy"]

    @property
    def diverged(self) -> bool:
        """Whether a training with it left all numbers."""
        return None in self.scores

    @property
    def mean(self) -> float:
        """Mean score; the worst there is for a setting that diverged, be it with one seed only."""
        known = [found for found in self.scores if found is not None]
        if not known or self.diverged:
            return 0.0 if self.metric.higher_is_better else math.inf
        return mean_interval(known).mean

    @property
    def rounded_mean(self) -> float | None:
        """For the file: three decimals of a per cent, six digits of others, None for infinity."""
        if self.metric.is_share:
            return round(self.mean, 3)
        return float(f"{self.mean:.6g}") if math.isfinite(self.mean) else None

    @property
    def rank(self) -> float:
        """What is smaller the better the setting is."""
        return -self.mean if self.metric.higher_is_better else self.mean


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """All settings that were tried.

    Attributes:
        name: of the recipe or config.
        cells: the cells that were averaged over, in words.
        held_out: share of the training records held out.
        seeds: repetitions of each.
        tried: every setting, in the order of the grid.
        options: of the command that change what is tried, such as ``--baseline``.
        source: what the command was given, if that is not the name: a file.
    """

    name: str
    cells: tuple[str, ...]
    held_out: float
    seeds: int
    tried: tuple[Tried, ...]
    options: tuple[str, ...] = ()
    source: str = ""

    @property
    def chosen(self) -> Tried:
        """The setting with the best mean; of equals the first."""
        return min(self.tried, key=lambda tried: tried.rank)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": "dpcohort search",
            "schema": 1,
            "recipe": self.name,
            "note": UNCHARGED,
            "command": " ".join(["dpcohort search", self.source or self.name, *self.options]),
            "cells": list(self.cells),
            "held_out": self.held_out,
            "seeds": self.seeds,
            "metric": self.chosen.metric.name,
            "tried": [
                {
                    "set": list(tried.settings),
                    "mean": tried.rounded_mean,
                    tried.metric.name: list(tried.scores),
                }
                for tried in self.tried
            ],
            "chosen": list(self.chosen.settings),
            "chosen_mean": self.chosen.rounded_mean,
        }


def search_grid(grid: Mapping[str, Sequence[Any]]) -> list[tuple[str, ...]]:
    """Every combination of a grid, as changes of a configuration.

    Example:
        >>> search_grid({"training.clip": [0.1, 1], "selection.eta": [10]})
        [('training.clip=0.1', 'selection.eta=10'), ('training.clip=1', 'selection.eta=10')]
    """
    settings = math.prod(len(values) for values in grid.values())
    whole_number("combinations of the grid", settings, at_most=MOST_CELLS)
    return [
        as_changes(dict(zip(grid, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]


def recipe_search(recipe: Recipe, *, baseline: bool = False) -> SearchSection:
    """What a recipe asks to be tried: its table [recipe.search] or [recipe.baseline_search].

    Raises:
        InputError: it has none.
    """
    table = "baseline_search" if baseline else "search"
    section = recipe.header.searches.get(table)
    if section is None:
        raise InputError.because(
            f"the recipe {recipe.name} has no table [recipe.{table}], which says what to try."
        )
    return section


def searched_cells(
    recipe: Recipe, section: SearchSection, at: Mapping[str, str] | None = None
) -> list[Cell]:
    """The cells a search is scored on.

    Args:
        recipe: in its full form.
        section: one of its searches.
        at: other values of axes, or another mechanism, than the search's, as somebody typed them.

    Raises:
        InputError: the recipe has no such axis, or the axis no such value.

    Example:
        >>> from dpcohort_lab.recipes import load_recipe
        >>> recipe = load_recipe("batch-size")
        >>> section = recipe_search(recipe)
        >>> [cell.label for cell in searched_cells(recipe, section, {"B": "32"})]
        ['privacy-aware, B = 32']
    """
    axes = {axis.name: {str(value): value for value in axis.values} for axis in recipe.header.axes}
    axes[MECHANISM] = {mechanism.name: mechanism.name for mechanism in recipe.header.mechanisms}
    chosen = {}
    for name, typed in (at or {}).items():
        if name not in axes:
            raise InputError("--at", given=name, allowed=f"an axis: {', '.join(axes) or 'none'}")
        if typed not in axes[name]:
            raise InputError(f"--at {name}", given=typed, allowed=", ".join(axes[name]))
        chosen[name] = axes[name][typed]
    return recipe.cells_of({**section.when, **chosen})


def section_settings(section: SearchSection) -> list[tuple[str, ...]]:
    """The settings of a search, grid first.

    Example:
        >>> section_settings(SearchSection(grid={"training.clip": [1]}, candidates=[["a.b=2"]]))
        [('training.clip=1',), ('a.b=2',)]
    """
    grid = search_grid(section.grid) if section.grid else []
    return [*grid, *(tuple(candidate) for candidate in section.candidates)]


def run_search(
    name: str,
    cells: Sequence[Cell],
    settings: Sequence[tuple[str, ...]],
    *,
    seeds: int,
    share: float,
    device: str | None = None,
    workers: Workers | None = None,
    progress: Progress = silent,
    **told: Any,
) -> SearchResult:
    """Try settings on cells; one with which a training diverges has the worst mean there is.

    ``told`` is what else the result says of the command.

    Raises:
        InputError: there is nothing to try, or every setting diverges.
    """
    if not settings:
        raise InputError.because(f"the grid of {name} is empty, so there is nothing to try.")
    number("held_out", share, above=0, below=1)
    changed = [
        replace(cell, config=_scored_once(cell.config.with_overrides(setting), share))
        for setting in settings
        for cell in cells
    ]
    works = prepare(
        [(cell, seed) for cell in changed for seed in range(seeds)],
        device=device,
        holdings=_within_clients(share)
        if cells[0].config.clients is not None
        else loaded_once(lambda config: held_out(configured_data(config), share)),
    )
    metrics = {main_metric(job.task).name for _, _, job in works}
    if len(metrics) > 1:
        raise InputError.because(
            f"the settings of {name} are judged by different numbers ({', '.join(sorted(metrics))})"
            ", which cannot be compared. Leave [task] out of the grid."
        )
    scored = score_works(works, workers=workers, progress=progress)
    by_work = {id(work): score for work, score in scored}
    scores = [by_work[id(work)] for work in works]
    each, metric = len(cells) * seeds, METRICS[metrics.pop()]
    tried = tuple(
        Tried(
            settings=setting, scores=tuple(scores[place * each : (place + 1) * each]), metric=metric
        )
        for place, setting in enumerate(settings)
    )
    if all(one.diverged for one in tried):
        raise InputError.because(
            f"with every setting of {name} a training left all numbers, so none can be chosen. "
            "Try a smaller optimiser.learning_rate or optimiser.server_learning_rate."
        )
    return SearchResult(
        name=name,
        cells=tuple(cell.label for cell in cells),
        held_out=share,
        seeds=seeds,
        tried=tried,
        **told,
    )


def write_search(result: SearchResult, path: str | Path) -> None:
    """Write the file, one tried setting a line."""
    write_lines(Path(path), result.to_dict(), listed=["tried"])


def _scored_once(config: Config, share: float) -> Config:
    """Looked at in the last round only, with clients that fit into what is not held out."""
    changes = [f"run.evaluate_every={config.training.rounds}"]
    stated = config.values.get("population", {}).get("total_size")
    if isinstance(stated, int):
        changes.append(f"population.total_size={int((1 - share) * stated)}")
    return config.with_overrides(changes)


def _within_clients(share: float) -> Holdings:
    """Of a list of clients, whose sizes are given: part of each client's records is held out."""
    known: dict[str, dict[str, Any]] = {}

    def holdings(config: Config) -> dict[str, Any]:
        # Who holds which record does not depend on how one trains with it.
        key = repr((config.clients, config.data, config.run.seed))
        if key not in known:
            data, population, partition = held_out_within(config, configured_data(config), share)
            known[key] = {"data": data, "population": population, "partition": partition}
        return known[key]

    return holdings


#: Always the same split, so that searches can be compared and it is not chosen by its outcome.
_SEED = 20_260_222


def held_out(data: Dataset, share: float = 0.1) -> Dataset:
    """The data set with part of its training records in the place of its test records.

    The test set is not in the result, so nothing that is done with it can look there.

    Args:
        data: the whole set.
        share: of the training records to hold out.

    Example:
        >>> from dpcohort.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> split = held_out(digits)
        >>> len(digits), len(split), len(split.test_labels)
        (1442, 1298, 144)
    """
    number("held_out", share, above=0, below=1)
    count = int(share * len(data))
    if not 0 < count < len(data):
        allowed = "a share that leaves records on each side"
        raise InputError("held_out", given=share, allowed=allowed)
    held, rest = np.split(np.random.default_rng(_SEED).permutation(len(data)), [count])
    return data.held_out(rest, held, name=f"{data.name} (held out {share:g})")

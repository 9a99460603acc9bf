# SPDX-License-Identifier: Apache-2.0
"""A recipe spread out into the cells of a form: full, quick or smallest.

A cell's configuration is the file's with these changes, in this order: those of the form, of the
mechanism, of the axes, of every [[recipe.where]] that fits. Building it checks it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpcohort.config import Config
from dpcohort.errors import FileFormatError, InputError
from dpcohort.lab.recipes.recipe import Cell, Recipe, as_changes, fits
from dpcohort.lab.recipes.schema import AxisSection, MechanismSection, Value

__all__ = ["about_file", "cells_in_form", "changes_of"]

#: The smallest form: a few rounds of softmax regression on the embedded digits, for every recipe.
_SMALLEST_FIRST = (
    "population.count=8",
    "population.total_size=",
    "training.rounds=2",
    "training.cohort_size=3",
    "training.batch_size=16",
    "training.oversized_batch=whole",
    "run.evaluate_every=1",
)
_SMALLEST_LAST = (
    "data.name=digits",
    "model.name=logistic",
    "model.options=",
    "training.dimension=650",
    "training.rounds=2",
    "training.local_steps=1",
)


def cells_in_form(recipe: Recipe, changes: Sequence[str] = ()) -> Iterator[Cell]:
    """Every cell of the recipe in the form it says it has.

    Args:
        recipe: its form decides; its own cells are not looked at.
        changes: settings to change in every cell, after all others.

    Raises:
        FileFormatError: a cell cannot be built, or the reduced form names what is not there.

    Example:
        >>> from dpcohort.lab.recipes import load_recipe
        >>> [cell.label for cell in cells_in_form(load_recipe("mnist").in_form("smallest"))][-1]
        'privacy-aware, s = 100'
    """
    header, quick = recipe.header, recipe.header.quick
    axes, mechanisms = list(header.axes), list(header.mechanisms)
    first: list[Sequence[str]] = []
    last: Sequence[str] = ()
    if recipe.form != "full":
        axes = [_reduced(recipe, axis) for axis in axes]
        first.append(quick.set)
        kept = quick.mechanisms or [mechanism.name for mechanism in mechanisms]
        unknown = set(kept) - {mechanism.name for mechanism in mechanisms}
        if unknown or not set(quick.axes) <= {axis.name for axis in axes}:
            raise recipe.problem("quick", "names an axis or mechanism that the recipe has not")
        if recipe.form == "quick":
            mechanisms = [mechanism for mechanism in mechanisms if mechanism.name in kept]
    if recipe.form == "smallest":
        first.append(_SMALLEST_FIRST)
        last = _SMALLEST_LAST
    for mechanism in mechanisms:
        start = _changed(recipe, recipe.base, [*first, *changes_of(recipe, mechanism)])
        for values in itertools.product(*(axis.values for axis in axes)):
            place = {axis.name: value for axis, value in zip(axes, values, strict=True)}
            if not fits(mechanism.name, place, mechanism.only):
                continue
            own = as_changes({axis.key: place[axis.name] for axis in axes})
            fitting = [w.set for w in header.where if fits(mechanism.name, place, w.when)]
            config = _changed(recipe, start, [own, *fitting, last, changes])
            yield _cell(recipe, mechanism, place, config)


def _changed(recipe: Recipe, config: Config, stages: Sequence[Sequence[str]]) -> Config:
    """Changes one after the other: what a later one sets takes the earlier out."""
    try:
        for stage in stages:
            config = config.with_overrides(stage) if stage else config
    except FileFormatError as error:
        raise about_file(recipe.path, error) from None
    except InputError as error:
        raise FileFormatError(recipe.path, str(error)) from None
    return config


def _cell(
    recipe: Recipe, mechanism: MechanismSection, place: dict[str, Value], config: Config
) -> Cell:
    if config.data is None:
        raise recipe.problem("mechanisms", "train, but there is no table [data]")
    rows = [row for row in recipe.header.numbers if fits(mechanism.name, place, row.when)]
    return Cell(
        mechanism=mechanism.name,
        axes=place,
        config=config,
        adaptive=mechanism.adaptive,
        paper=next((row.paper for row in rows if row.paper is not None), None),
        goal=next((row.goal for row in rows if row.goal is not None), None),
    )


def changes_of(recipe: Recipe, mechanism: MechanismSection) -> list[list[str]]:
    """The changes of a mechanism after those of the ones it builds on.

    Raises:
        FileFormatError: it builds on itself, or on one that is not there.
    """
    by_name = {m.name: m for m in recipe.header.mechanisms}
    changes: list[list[str]] = []
    at: MechanismSection | None = mechanism
    seen: set[str] = set()
    while at is not None:
        if at.name in seen:
            raise recipe.problem("mechanisms", f"{mechanism.name!r} comes after itself")
        seen.add(at.name)
        changes = [at.set, *changes]
        if at.after is not None and at.after not in by_name:
            raise recipe.problem("mechanisms", f"after = {at.after!r} is no mechanism")
        at = by_name[at.after] if at.after is not None else None
    return changes


def _reduced(recipe: Recipe, axis: AxisSection) -> AxisSection:
    wanted = recipe.header.quick.axes.get(axis.name, axis.values)
    if recipe.form == "smallest":
        wanted = wanted[:1]
    if not wanted or not set(wanted) <= set(axis.values):
        raise recipe.problem("quick", f"axes.{axis.name} must be some of {axis.values}")
    return axis.model_copy(update={"values": list(wanted)})


def about_file(path: Path, error: FileFormatError) -> FileFormatError:
    """The same error about settings, with the recipe's file for a name."""
    words = str(error).removeprefix("settings").removeprefix(f", line {error.line}: ").lstrip(": ")
    return FileFormatError(path, words, line=error.line)

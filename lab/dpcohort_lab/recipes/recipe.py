# SPDX-License-Identifier: Apache-2.0
"""A recipe and its cells: what is varied, and the configuration of each point of it.

A cell is one mechanism at one value of every axis; ``reading`` makes a recipe from its file. A
cell's configuration is the file's with these changes, in this order: those of the form (full, quick
or smallest), of the mechanism, of the axes, of every [[recipe.where]] that fits. Building it checks
it.

The keys of the table [recipe] and the type of each value stand first; what goes together is checked
in ``reading``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dpcohort.config import Config, Lines, Section
from dpcohort.errors import FileFormatError, InputError
from dpcohort_lab.checks import whole_number

#: What an axis may hold.
Value = str | int | float
#: The two forms of the paper's biased baseline.
Adaptive = Literal["biased-raw", "biased-private"]
#: How the results are drawn.
FigureKind = Literal["bars", "curves", "lines", "selection"]


class MechanismSection(Section):
    """One table [[recipe.mechanisms]]: a way to choose clients, or one more step of an ablation."""

    name: str
    after: str | None = None
    only: dict[str, Value] = Field(default_factory=dict)
    set: list[str] = Field(default_factory=list)
    adaptive: Adaptive | None = None


class AxisSection(Section):
    """One table [[recipe.axes]]: a setting that is varied."""

    name: str
    key: str
    values: list[Value]


class WhereSection(Section):
    """One table [[recipe.where]]: settings of some cells only."""

    when: dict[str, Value]
    set: list[str]


class NumberSection(Section):
    """One line of ``recipe.numbers``: what the paper reports for a cell, and what we aim for."""

    when: dict[str, Value]
    paper: float | None = None
    goal: float | None = None


class ClaimSection(Section):
    """One table [[recipe.claims]]: a sentence of the paper that has no number for each cell."""

    text: str
    when: dict[str, Value] = Field(default_factory=dict)
    below: float | None = None
    gain: float | None = None
    over: str | None = None
    within: float = 5.0
    rises_along: str | None = None


class QuickSection(Section):
    """[recipe.quick]: the reduced form for two cores and a few minutes."""

    seeds: int = 2
    set: list[str] = Field(default_factory=list)
    axes: dict[str, list[Value]] = Field(default_factory=dict)
    mechanisms: list[str] = Field(default_factory=list)


class SearchSection(Section):
    """[recipe.search]: settings the paper leaves out, tried on held-out training records.

    [recipe.baseline_search] is the same for the baselines, which want settings of their own.
    """

    when: dict[str, Value] = Field(default_factory=dict)
    seeds: int = 2
    held_out: float = 0.1
    grid: dict[str, list[Value]] = Field(default_factory=dict)
    candidates: list[list[str]] = Field(default_factory=list)


class SelectionSection(Section):
    """[recipe.selection]: the panels of the figure of selection probabilities."""

    eta: list[float]


class RecipeSection(Section):
    """The whole table [recipe]."""

    title: str
    of: str
    figure: FigureKind
    seeds: int = 5
    tolerance: float | None = None
    judged: str | None = None
    across: str | None = None
    search_result: str | None = None
    notes: list[str] = Field(default_factory=list)
    mechanisms: list[MechanismSection] = Field(default_factory=list)
    axes: list[AxisSection] = Field(default_factory=list)
    where: list[WhereSection] = Field(default_factory=list)
    numbers: list[NumberSection] = Field(default_factory=list)
    claims: list[ClaimSection] = Field(default_factory=list)
    quick: QuickSection = Field(default_factory=QuickSection)
    search: SearchSection | None = None
    baseline_search: SearchSection | None = None
    selection: SelectionSection | None = None

    @property
    def searches(self) -> dict[str, SearchSection]:
        """The searches there are, by the names of their tables."""
        both = {"search": self.search, "baseline_search": self.baseline_search}
        return {name: section for name, section in both.items() if section is not None}


Form = Literal["full", "quick", "smallest"]

#: What a ``when`` calls the mechanism, beside the names of the axes.
MECHANISM = "mechanism"

#: The paper's biased baseline: in every round the clients with the largest local loss. The paper
#: ran it with exact ("raw") losses, which keeps nothing private; private ones are clipped, noised
#: and charged to the budgets. A client is drawn at most twice as often as on average, and its noise
#: is calibrated to that cap: the paper's own T_k cannot be known before the training.
_BIASED = ("selection.rule=power-of-choice", "selection.report_share=0.1", "privacy.guard=lift")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One mechanism at one value of every axis.

    Attributes:
        mechanism: its name.
        axes: value of each axis by the axis's name.
        config: the whole configuration.
        adaptive: how clients are chosen from their losses; None for a planned mechanism.
        paper: what the paper reports, in per cent.
        goal: what we aim for, in per cent.
    """

    mechanism: str
    axes: Mapping[str, Value]
    config: Config = field(repr=False)
    adaptive: Adaptive | None = None
    paper: float | None = None
    goal: float | None = None

    @property
    def label(self) -> str:
        """The cell in words."""
        parts = [self.mechanism]
        parts += [f"{name} = {_plain(value)}" for name, value in self.axes.items()]
        return ", ".join(parts)

    @property
    def slug(self) -> str:
        """The cell as a file name."""
        return re.sub(r"[^A-Za-z0-9.-]+", "_", self.label.replace(" = ", "-")).strip("_.")

    @property
    def sha256(self) -> str:
        """Hash of all that decides the result but the seed; where it runs is no part of it."""
        values = json.loads(json.dumps(self.config.values, sort_keys=True))
        for table, key in (("data", "dir"), ("run", "device"), ("run", "checkpoint_every")):
            values.get(table, {}).pop(key, None)
        text = json.dumps([values, self.adaptive], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def seeded(self, shift: int) -> Config:
        """The configuration of one repetition: other clients, cohorts, weights, batches, noise."""
        base = self.config
        clients = int(base.values.get("population", {}).get("seed", 0))
        schedule = base.run.seed if base.seed is None or self.adaptive else base.seed
        changes = [f"schedule.seed={schedule + shift}", f"run.seed={base.run.seed + shift}"]
        if self.adaptive:
            changes += [*_BIASED, f"selection.reports={self.adaptive.removeprefix('biased-')}"]
        if "clients" not in base.values.get("population", {}):
            changes.insert(0, f"population.seed={clients + shift}")
        return base.with_overrides(changes)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A table or figure of the paper, or what goes beyond it.

    Attributes:
        name: what it is called on the command line.
        path: its file.
        header: the table [recipe].
        base: the configuration all cells start from.
        cells: every cell.
        form: ``full``, ``quick`` or ``smallest``.
        seeds: how many repetitions.
    """

    name: str
    path: Path
    header: RecipeSection
    base: Config = field(repr=False)
    cells: tuple[Cell, ...] = field(repr=False)
    form: Form = "full"
    seeds: int = 5
    lines: Lines = field(default_factory=dict, repr=False, compare=False)

    @property
    def sha256(self) -> str:
        """Hash of all cells; a result belongs to a recipe if this is the same."""
        parts = sorted(f"{cell.slug} {cell.sha256}" for cell in self.cells)
        return hashlib.sha256("\n".join([self.form, *parts]).encode()).hexdigest()

    def in_form(
        self, form: Form, *, seeds: int | None = None, changes: Sequence[str] = ()
    ) -> Recipe:
        """The recipe in another form.

        Args:
            form: ``full``, ``quick`` (two cores, minutes) or ``smallest`` (embedded digits).
            seeds: repetitions; by default the form's.
            changes: settings to change in every cell, such as ``data.dir=...``.
        """
        usual = {"full": self.header.seeds, "quick": self.header.quick.seeds, "smallest": 1}[form]
        count = whole_number("seeds", usual if seeds is None else seeds, at_least=1)
        if self.header.figure == "selection":
            return self  # it trains nothing, so there is nothing to reduce
        made = replace(self, form=form, seeds=count)
        return replace(made, cells=tuple(cells_in_form(made, changes)))

    def cells_of(self, when: Mapping[str, Value]) -> list[Cell]:
        """The cells that a ``when`` is about."""
        return [cell for cell in self.cells if fits(cell.mechanism, cell.axes, when)]

    def problem(self, key: str, words: str) -> FileFormatError:
        """An error about one key of the recipe's own table, or deeper, with its line."""
        where = ("recipe", *key.split("."))
        around = [where[:end] for end in range(len(where) - 1, 0, -1)]
        places: list[tuple[str | int, ...]] = [where, (*where, 0), *around]
        line = next((self.lines[place] for place in places if self.lines.get(place)), None)
        return FileFormatError(self.path, f"recipe.{key} {words}", line=line)


def fits(mechanism: str, axes: Mapping[str, Value], when: Mapping[str, Value]) -> bool:
    """Whether a ``when`` is about the cell at that place.

    Example:
        >>> fits("unbiased", {"s": 0}, {"mechanism": "unbiased"}), fits("unbiased", {}, {"s": 0})
        (True, False)
    """
    place: dict[str, Any] = {MECHANISM: mechanism, **axes}
    return all(key in place and place[key] == value for key, value in when.items())


def as_changes(setting: Mapping[str, Value]) -> tuple[str, ...]:
    """Values of keys as changes of a configuration.

    Example:
        >>> as_changes({"training.clip": 0.1, "data.name": "digits"})
        ('training.clip=0.1', 'data.name="digits"')
    """
    return tuple(f"{key}={json.dumps(value)}" for key, value in setting.items())


def _plain(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    "training.cohort_size=3",
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
        >>> from dpcohort_lab.recipes import load_recipe
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
            if config.data is None:
                raise recipe.problem("mechanisms", "train, but there is no table [data]")
            rows = [row for row in header.numbers if fits(mechanism.name, place, row.when)]
            yield Cell(
                mechanism=mechanism.name,
                axes=place,
                config=config,
                adaptive=mechanism.adaptive,
                paper=next((row.paper for row in rows if row.paper is not None), None),
                goal=next((row.goal for row in rows if row.goal is not None), None),
            )


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


def changes_of(
    recipe: Recipe, mechanism: MechanismSection, above: tuple[str, ...] = ()
) -> list[list[str]]:
    """The changes of a mechanism after those of the ones it builds on.

    Args:
        recipe: whose mechanisms.
        mechanism: one of them.
        above: those that build on it, by name.

    Raises:
        FileFormatError: it builds on itself, or on one that is not there.
    """
    if mechanism.name in above:
        raise recipe.problem("mechanisms", f"{above[0]!r} comes after itself")
    if mechanism.after is None:
        return [mechanism.set]
    by_name = {m.name: m for m in recipe.header.mechanisms}
    if mechanism.after not in by_name:
        raise recipe.problem("mechanisms", f"after = {mechanism.after!r} is no mechanism")
    earlier = changes_of(recipe, by_name[mechanism.after], (*above, mechanism.name))
    return [*earlier, mechanism.set]


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

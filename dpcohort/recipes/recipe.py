# SPDX-License-Identifier: Apache-2.0
"""A recipe read, checked whole, and spread out into its cells.

A recipe's file is an ordinary configuration and the table [recipe]. A cell is one mechanism at one
value of every axis; its configuration is the file's with these changes, in this order: those of the
form (quick, smallest), of the mechanism, of the axes, of every [[recipe.where]] that fits. All of
them are built, and so checked, when the recipe is read.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dpcohort._validate import nearest, number, whole_number
from dpcohort.config import Config, loads_config
from dpcohort.config.problems import Lines, error_of, key_lines, words_of
from dpcohort.errors import FileFormatError, InputError
from dpcohort.recipes.schema import (
    Adaptive,
    AxisSection,
    MechanismSection,
    RecipeSection,
    Value,
    recipe_keys,
)
from dpcohort.text_files import read_utf8

__all__ = ["Cell", "Form", "Recipe", "load_recipe", "recipe_names"]

Form = Literal["full", "quick", "smallest"]

_FOLDER = Path(__file__).parent
_MAX_BYTES = 200_000
_RECIPE_TABLE = re.compile(r"\s*\[\[?\s*recipe\b")
_TABLE = re.compile(r"\s*\[")
MECHANISM = "mechanism"

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
        values.get("data", {}).pop("dir", None)
        values.get("run", {}).pop("device", None)
        values.get("run", {}).pop("checkpoint_every", None)
        text = json.dumps([values, self.adaptive], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def seeded(self, shift: int) -> Config:
        """The configuration of one repetition: other clients, cohorts, weights, batches, noise."""
        base = self.config
        clients = int(base.values.get("population", {}).get("seed", 0))
        schedule = base.run.seed if base.seed is None else base.seed
        changes = [
            f"schedule.seed={schedule + shift}",
            f"run.seed={base.run.seed + shift}",
        ]
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

    @property
    def judged(self) -> str | None:
        """The mechanism that is compared with the others."""
        return self.header.judged

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
        return replace(made, cells=tuple(_cells(made, changes)))

    def cells_of(self, when: Mapping[str, Value]) -> list[Cell]:
        """The cells that a ``when`` is about."""
        return [cell for cell in self.cells if _fits(cell.mechanism, cell.axes, when)]


def recipe_names() -> list[str]:
    """The recipes that come with the package.

    Example:
        >>> "fashion-mnist" in recipe_names()
        True
    """
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read and check a recipe.

    Args:
        name_or_path: the name of one that comes with the package, or a file.

    Raises:
        InputError: there is none of that name.
        FileFormatError: with file, line and field, for anything that cannot be used.

    Example:
        >>> recipe = load_recipe("fashion-mnist")
        >>> recipe.cells_of({"mechanism": "privacy-aware", "s": 100})[0].paper
        53.53
    """
    path = _path_of(str(name_or_path))
    return _checked(path, read_utf8(path, at_most_bytes=_MAX_BYTES).decode("utf-8"))


@lru_cache(maxsize=64)
def _checked(path: Path, content: str) -> Recipe:
    """The recipe of a text; frozen, so the same text is checked once."""
    lines = key_lines(content)
    header = _header(path, content, lines)
    base = _base(path, content)
    recipe = Recipe(
        name=path.stem, path=path, header=header, base=base, cells=(), lines=lines,
        seeds=header.seeds,
    )  # fmt: skip
    _check(recipe)
    for form in ("quick", "smallest"):
        recipe.in_form(form)  # a reduced form that cannot be built is found now, not when asked for
    whole = recipe.in_form("full")
    _check_whens(whole)
    return whole


def _path_of(text: str) -> Path:
    if text.endswith(".toml"):
        return Path(text)
    known = recipe_names()
    if text in known:
        return _FOLDER / f"{text}.toml"
    hint = nearest(text, known)
    raise InputError(
        "recipe",
        given=text,
        allowed=f"all, a file NAME.toml, or one of {', '.join(known)}",
        next_step=f"Did you mean {hint!r}?" if hint else None,
    )


def _base(path: Path, content: str) -> Config:
    """The configuration; the lines of [recipe] are blanked, so that line numbers stay."""
    kept, is_recipe = [], False
    for line in content.splitlines():
        if _TABLE.match(line) and not line.startswith((" ", "\t")):
            is_recipe = bool(_RECIPE_TABLE.match(line))
        kept.append("" if is_recipe else line)
    try:
        return loads_config("\n".join(kept) + "\n")
    except FileFormatError as error:
        raise _named(path, error) from None


def _header(path: Path, content: str, lines: Lines) -> RecipeSection:
    try:
        values = tomllib.loads(content)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"this is not valid TOML: {error}") from None
    if not isinstance(values.get("recipe"), dict):
        raise FileFormatError(path, "the table [recipe] is missing: this is a config, not a recipe")
    try:
        return RecipeSection.model_validate(values["recipe"])
    except ValidationError as error:
        found = []
        for details in error.errors(include_url=False):
            where = tuple(p for p in details["loc"] if p not in ("str", "int", "float"))
            found.append(words_of({**details, "loc": ("recipe", *where)}, recipe_keys()))
        raise error_of(path, found, lines) from None


def _named(path: Path, error: FileFormatError) -> FileFormatError:
    """The same error about settings, with the recipe's file for a name."""
    words = str(error).removeprefix("settings").removeprefix(f", line {error.line}: ").lstrip(": ")
    return FileFormatError(path, words, line=error.line)


def _check(recipe: Recipe) -> None:
    """What the types cannot say."""
    header, problem = recipe.header, _Problem(recipe)
    whole_number("recipe.seeds", header.seeds, at_least=1)
    whole_number("recipe.quick.seeds", header.quick.seeds, at_least=1)
    names = [mechanism.name for mechanism in header.mechanisms]
    if header.figure == "selection":
        if header.selection is None or not header.selection.eta:
            raise problem("selection", "needs eta = [...], one value a panel")
        for eta in header.selection.eta:
            number("recipe.selection.eta", eta, at_least=0)
    elif not names:
        raise problem("mechanisms", "is missing; a recipe that trains needs at least one")
    for what, given in (("mechanisms", names), ("axes", [axis.name for axis in header.axes])):
        if len(set(given)) != len(given) or "" in given or MECHANISM in given:
            raise problem(what, f"must have different names that are not empty: {given}")
    for axis in header.axes:
        if not axis.values or len(set(axis.values)) != len(axis.values):
            raise problem("axes", f"{axis.name}.values must be different values, at least one")
    known_axes = [axis.name for axis in header.axes]
    for key, given_name, known in (
        ("judged", header.judged, names),
        ("across", header.across, known_axes),
    ):
        if given_name is not None and given_name not in known:
            raise problem(key, f"= {given_name!r} is not one of {', '.join(known)}")
    for mechanism in header.mechanisms:
        _chain(recipe, mechanism)


def _check_whens(recipe: Recipe) -> None:
    header = recipe.header
    groups: list[tuple[str, Mapping[str, Value]]] = [("where", w.when) for w in header.where]
    groups += [("numbers", n.when) for n in header.numbers]
    groups += [("claims", c.when) for c in header.claims]
    searches = {"search": header.search, "baseline_search": header.baseline_search}
    groups += [(what, section.when) for what, section in searches.items() if section]
    for what, when in groups:
        if header.figure != "selection" and not recipe.cells_of(when):
            raise _Problem(recipe)(what, f"when = {dict(when)} fits no cell")
    for row in header.numbers:
        for value in (row.paper, row.goal):
            if value is not None:
                number("recipe.numbers", value, at_least=0, at_most=100)
    for claim in header.claims:
        kinds = [claim.below is not None, claim.gain is not None, claim.rises_along is not None]
        if sum(kinds) > 1 or (claim.gain is not None) != (claim.over is not None):
            raise _Problem(recipe)("claims", "takes one of below, gain (with over), rises_along")
    for what, section in searches.items():
        if section is not None and not (section.grid or section.candidates):
            raise _Problem(recipe)(what, "needs grid or candidates: what to try")


class _Problem:
    """Errors about one key of the recipe's own table."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def __call__(self, key: str, words: str) -> FileFormatError:
        lines = self._recipe.lines
        places: list[tuple[str | int, ...]] = [("recipe", key), ("recipe", key, 0), ("recipe",)]
        line = next((lines[place] for place in places if lines.get(place)), None)
        return FileFormatError(self._recipe.path, f"recipe.{key} {words}", line=line)


def _cells(recipe: Recipe, changes: Sequence[str]) -> Iterator[Cell]:
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
            raise _Problem(recipe)("quick", "names an axis or mechanism that the recipe has not")
        if recipe.form == "quick":
            mechanisms = [mechanism for mechanism in mechanisms if mechanism.name in kept]
    if recipe.form == "smallest":
        first.append(_SMALLEST_FIRST)
        last = _SMALLEST_LAST
    for mechanism in mechanisms:
        start = _changed(recipe, recipe.base, [*first, *_chain(recipe, mechanism)])
        for values in itertools.product(*(axis.values for axis in axes)):
            place = {axis.name: value for axis, value in zip(axes, values, strict=True)}
            if not _fits(mechanism.name, place, mechanism.only):
                continue
            own = [f"{axis.key}={json.dumps(place[axis.name])}" for axis in axes]
            fitting = [w.set for w in header.where if _fits(mechanism.name, place, w.when)]
            config = _changed(recipe, start, [own, *fitting, last, changes])
            yield _cell(recipe, mechanism, place, config)


def _changed(recipe: Recipe, config: Config, stages: Sequence[Sequence[str]]) -> Config:
    """Changes one after the other: what a later one sets takes the earlier out."""
    try:
        for stage in stages:
            config = config.with_overrides(stage) if stage else config
    except FileFormatError as error:
        raise _named(recipe.path, error) from None
    except InputError as error:
        raise FileFormatError(recipe.path, str(error)) from None
    return config


def _cell(
    recipe: Recipe, mechanism: MechanismSection, place: dict[str, Value], config: Config
) -> Cell:
    if config.data is None:
        raise _Problem(recipe)("mechanisms", "train, but there is no table [data]")
    rows = [row for row in recipe.header.numbers if _fits(mechanism.name, place, row.when)]
    return Cell(
        mechanism=mechanism.name,
        axes=place,
        config=config,
        adaptive=mechanism.adaptive,
        paper=next((row.paper for row in rows if row.paper is not None), None),
        goal=next((row.goal for row in rows if row.goal is not None), None),
    )


def _chain(recipe: Recipe, mechanism: MechanismSection) -> list[list[str]]:
    """The changes of a mechanism after those of the ones it builds on."""
    by_name = {m.name: m for m in recipe.header.mechanisms}
    changes: list[list[str]] = []
    at: MechanismSection | None = mechanism
    seen: set[str] = set()
    while at is not None:
        if at.name in seen:
            raise _Problem(recipe)("mechanisms", f"{mechanism.name!r} comes after itself")
        seen.add(at.name)
        changes = [at.set, *changes]
        if at.after is not None and at.after not in by_name:
            raise _Problem(recipe)("mechanisms", f"after = {at.after!r} is no mechanism")
        at = by_name[at.after] if at.after is not None else None
    return changes


def _reduced(recipe: Recipe, axis: AxisSection) -> AxisSection:
    wanted = recipe.header.quick.axes.get(axis.name, axis.values)
    if recipe.form == "smallest":
        wanted = wanted[:1]
    if not wanted or not set(wanted) <= set(axis.values):
        raise _Problem(recipe)("quick", f"axes.{axis.name} must be some of {axis.values}")
    return axis.model_copy(update={"values": list(wanted)})


def _fits(mechanism: str, axes: Mapping[str, Value], when: Mapping[str, Value]) -> bool:
    place: dict[str, Any] = {MECHANISM: mechanism, **axes}
    return all(key in place and place[key] == value for key, value in when.items())


def _plain(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

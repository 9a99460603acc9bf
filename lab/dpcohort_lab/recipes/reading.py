# SPDX-License-Identifier: Apache-2.0
"""A recipe read from its file and checked whole: every form is built before any is asked for.

A recipe's file is an ordinary configuration and the table [recipe]. Names and types of its keys are
checked by their models, the settings of each cell by building it, and here what must go together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from dpcohort.config import (
    Config,
    Lines,
    error_of,
    key_lines,
    known_keys,
    loads_config,
    words_of,
)
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_CONFIG, MOST_CELLS, MOST_SEEDS
from dpcohort.text_files import parse_toml, read_utf8
from dpcohort_lab.checks import did_you_mean, number, whole_number
from dpcohort_lab.recipes.recipe import (
    MECHANISM,
    Recipe,
    RecipeSection,
    Value,
    about_file,
    as_changes,
    changes_of,
)

_FOLDER = Path(__file__).parent
_RECIPE_TABLE = re.compile(r"\s*\[\[?\s*recipe\b")
_TABLE = re.compile(r"\s*\[")


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
    return _checked(path, read_utf8(path, at_most_bytes=LARGEST_CONFIG).decode("utf-8"))


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
    try:
        check_header(recipe)
        for form in ("quick", "smallest"):
            recipe.in_form(form)  # one that cannot be built is found now, not when asked for
        whole = recipe.in_form("full")
        check_whens(whole)
        check_searches(whole)
    except FileFormatError:
        raise
    except InputError as error:
        where = tuple(error.field.split("."))
        raise error_of(path, [(where, str(error))], lines) from None
    return whole


def _path_of(text: str) -> Path:
    if text.endswith(".toml"):
        return Path(text)
    known = recipe_names()
    if text in known:
        return _FOLDER / f"{text}.toml"
    raise InputError(
        "recipe",
        given=text,
        allowed=f"all, a file NAME.toml, or one of {', '.join(known)}",
        next_step=did_you_mean(text, known),
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
        raise about_file(path, error) from None


def _header(path: Path, content: str, lines: Lines) -> RecipeSection:
    try:
        values = parse_toml(content)
    except ValueError as error:
        raise FileFormatError(path, f"this is not valid TOML: {error}") from None
    if not isinstance(values.get("recipe"), dict):
        raise FileFormatError(path, "the table [recipe] is missing: this is a config, not a recipe")
    try:
        return RecipeSection.model_validate(values["recipe"])
    except ValidationError as error:
        found, known = [], known_keys(RecipeSection, "recipe")
        for details in error.errors(include_url=False):
            where = tuple(p for p in details["loc"] if p not in ("str", "int", "float"))
            found.append(words_of({**details, "loc": ("recipe", *where)}, known))
        raise error_of(path, found, lines) from None


def check_header(recipe: Recipe) -> None:
    """What the types of the keys cannot say, before any cell is built.

    Raises:
        FileFormatError: with file, line and key.
        InputError: a number out of range.
    """
    header, problem = recipe.header, recipe.problem
    whole_number("recipe.seeds", header.seeds, at_least=1, at_most=MOST_SEEDS)
    whole_number("recipe.quick.seeds", header.quick.seeds, at_least=1, at_most=MOST_SEEDS)
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
    cells = max(1, len(names)) * math.prod(len(axis.values) for axis in header.axes)
    whole_number("recipe.axes x mechanisms", cells, at_most=MOST_CELLS)
    known_axes = [axis.name for axis in header.axes]
    for key, given_name, known in (
        ("judged", header.judged, names),
        ("across", header.across, known_axes),
    ):
        if given_name is not None and given_name not in known:
            raise problem(key, f"= {given_name!r} is not one of {', '.join(known)}")
    for mechanism in header.mechanisms:
        changes_of(recipe, mechanism)


def check_whens(recipe: Recipe) -> None:
    """Every ``when`` is about some cell, and what stands beside it goes together.

    Raises:
        FileFormatError: with file, line and key.
        InputError: a number out of range.
    """
    header = recipe.header
    groups: list[tuple[str, Mapping[str, Value]]] = [("where", w.when) for w in header.where]
    groups += [("numbers", n.when) for n in header.numbers]
    groups += [("claims", c.when) for c in header.claims]
    groups += [(what, section.when) for what, section in recipe.header.searches.items()]
    for what, when in groups:
        if header.figure != "selection" and not recipe.cells_of(when):
            raise recipe.problem(what, f"when = {dict(when)} fits no cell")
    if header.tolerance is not None:
        number("recipe.tolerance", header.tolerance, at_least=0, at_most=100)
    for row in header.numbers:
        for value in (row.paper, row.goal):
            if value is not None:
                number("recipe.numbers", value, at_least=0, at_most=100)
    for claim in header.claims:
        kinds = [claim.below is not None, claim.gain is not None, claim.rises_along is not None]
        if sum(kinds) > 1 or (claim.gain is not None) != (claim.over is not None):
            raise recipe.problem("claims", "takes one of below, gain (with over), rises_along")


def check_searches(recipe: Recipe) -> None:
    """Everything a search would try is a configuration, found before somebody starts one.

    Of a grid, each value is checked beside the first values of the other keys: few configurations,
    all of them in the grid.

    Raises:
        FileFormatError: with file, line and key.
        InputError: a number out of range.
    """
    for what, section in recipe.header.searches.items():
        if not (section.grid or section.candidates):
            raise recipe.problem(what, "needs grid or candidates: what to try")
        whole_number(f"recipe.{what}.seeds", section.seeds, at_least=1, at_most=MOST_SEEDS)
        number(f"recipe.{what}.held_out", section.held_out, above=0, below=1)
        for key, values in section.grid.items():
            if not values:
                raise recipe.problem(f"{what}.grid.{key}", "must have at least one value")
        for cell in recipe.cells_of(section.when)[:1]:
            for setting in _with_each_value(section.grid):
                if words := _refusal(cell.config, as_changes(setting)):
                    key = next((key for key in setting if key in words), next(iter(setting)))
                    said = f"= {setting[key]!r} cannot be tried: {words}"
                    raise recipe.problem(f"{what}.grid.{key}", said)
            for candidate in section.candidates:
                if words := _refusal(cell.config, candidate):
                    said = f"hold {candidate}, which cannot be tried: {words}"
                    raise recipe.problem(f"{what}.candidates", said)


def _with_each_value(grid: Mapping[str, Sequence[Value]]) -> Iterator[dict[str, Value]]:
    """Settings of a grid in which each of its values occurs: the first ones, with one changed."""
    first = {key: values[0] for key, values in grid.items()}
    if first:
        yield first
    for key, values in grid.items():
        for value in values[1:]:
            yield {**first, key: value}


def _refusal(config: Config, changes: Sequence[str]) -> str:
    """What is wrong with a changed configuration; nothing if it can be used."""
    try:
        config.with_overrides(changes)
    except FileFormatError as error:
        head = error.path if error.line is None else f"{error.path}, line {error.line}"
        return str(error).removeprefix(f"{head}: ")
    except InputError as error:
        return str(error)
    return ""

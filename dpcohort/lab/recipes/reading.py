# SPDX-License-Identifier: Apache-2.0
"""A recipe read from its file and checked whole: every form is built before any is asked for.

A recipe's file is an ordinary configuration and the table [recipe].
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from dpcohort._validate import nearest
from dpcohort.config import Config, loads_config
from dpcohort.config.problems import ConfigProblem, Lines, error_of, key_lines, words_of
from dpcohort.errors import FileFormatError, InputError
from dpcohort.lab.recipes.checking import check_header, check_searches, check_whens
from dpcohort.lab.recipes.forms import about_file
from dpcohort.lab.recipes.recipe import Recipe
from dpcohort.lab.recipes.schema import RecipeSection, recipe_keys
from dpcohort.limits import LARGEST_CONFIG
from dpcohort.text_files import parse_toml, read_utf8

__all__ = ["load_recipe", "recipe_names"]

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
        raise error_of(path, [ConfigProblem(where, str(error))], lines) from None
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
        found = []
        for details in error.errors(include_url=False):
            where = tuple(p for p in details["loc"] if p not in ("str", "int", "float"))
            found.append(words_of({**details, "loc": ("recipe", *where)}, recipe_keys()))
        raise error_of(path, found, lines) from None

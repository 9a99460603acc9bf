# SPDX-License-Identifier: Apache-2.0
"""NAME.json: the result of a recipe, small enough to be kept with the code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from dpcohort.atomic_file import write_text
from dpcohort.errors import FileFormatError
from dpcohort.lab.recipes.judgement import REDUCED, RecipeResult
from dpcohort.lab.recipes.recipe import Recipe
from dpcohort.limits import LARGEST_RESULT
from dpcohort.text_files import parse_json, read_utf8

__all__ = ["read_result", "result_dict", "result_note", "result_path", "write_result"]

_FORMAT = "dpcohort reproduction"

_SEARCHED = (
    "Settings the paper leaves out were searched on held-out training records; the search is not "
    "charged to the clients' budgets, as in the paper."
)
_SIMULATED = "Runs are seeded simulations: NOT PRIVATE."


def result_note(recipe: Recipe) -> str:
    """What stands beside every number of a recipe, above all if it depends on a search.

    Example:
        >>> from dpcohort.lab.recipes import load_recipe
        >>> result_note(load_recipe("mnist-variants"))
        'Runs are seeded simulations: NOT PRIVATE.'
    """
    return f"{_SEARCHED} {_SIMULATED}" if recipe.header.search_result else _SIMULATED


def result_dict(result: RecipeResult, environment: dict[str, Any] | None = None) -> dict[str, Any]:
    """A result in plain values."""
    recipe = result.recipe
    return {
        "format": _FORMAT,
        "schema": 1,
        "recipe": recipe.name,
        "title": recipe.header.title,
        "of": recipe.header.of,
        "form": recipe.form,
        "warning": REDUCED[recipe.form],
        "note": result_note(recipe),
        "notes": list(recipe.header.notes),
        "recipe_sha256": recipe.sha256,
        "command": _command(recipe),
        "search": recipe.header.search_result,
        "seeds": recipe.seeds,
        "promises_hold": result.promises_hold,
        "seconds": round(result.seconds, 1),
        "environment": environment or {},
        "findings": [finding.to_dict() for finding in result.findings],
        "cells": [cell.to_dict() for cell in result.cells],
        **result.extra,
    }


def _command(recipe: Recipe) -> str:
    own = recipe.path.parent.resolve() != Path(__file__).parent.resolve()
    option = "" if recipe.form == "full" else f" --{recipe.form}"
    source = shlex.quote(recipe.path.name) if own else recipe.name
    return f"dpcohort reproduce {source}{option} --seeds {recipe.seeds}"


def result_path(folder: Path, name: str, form: str) -> Path:
    """Where a result is; a reduced one says so in its name.

    Example:
        >>> result_path(Path("results"), "mnist", "quick").name
        'mnist.quick.json'
    """
    return folder / (f"{name}.json" if form == "full" else f"{name}.{form}.json")


def write_result(
    result: RecipeResult, folder: Path, environment: dict[str, Any] | None = None
) -> Path:
    """Write a result; one cell a line, so that a change shows where it is."""
    values = result_dict(result, environment)
    path = result_path(folder, result.recipe.name, result.recipe.form)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f" {json.dumps(key)}: {_value(key, value)}" for key, value in values.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def _value(key: str, value: Any) -> str:
    if key in ("cells", "findings") and value:
        return "[\n  " + ",\n  ".join(json.dumps(item, ensure_ascii=False) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def read_result(path: str | Path) -> dict[str, Any]:
    """A result as plain values.

    Raises:
        FileFormatError: the file is missing or is no result.
    """
    try:
        values = parse_json(read_utf8(path, at_most_bytes=LARGEST_RESULT))
    except ValueError as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(path, f"this is not JSON: {error}") from None
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise FileFormatError(path, "this is no result of dpcohort reproduce")
    return values

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from dpcohort.errors import FileFormatError
from dpcohort_lab.recipes.execution import Measurement, read_cell, write_cell


def measured(seed=0, accuracy=50.0, **changes):
    values = {
        "seed": seed,
        "accuracy": accuracy,
        "last": accuracy - 1,
        "curve": ((1, 10.0), (2, accuracy)),
        "clients_drawn": 5,
        "clients_lifted": 0,
        "promises_hold": True,
        "seconds": 0.5,
        "device": "cpu",
        "plan": "ab",
        **changes,
    }
    return Measurement(**values)


def test_what_was_kept_is_found_again(recipe, tmp_path):
    cell, path = recipe.cells[0], tmp_path / "cells" / "cell.json"
    assert read_cell(path, cell) == {}
    write_cell(path, cell, {1: measured(1, 60.0), 0: measured()})
    assert read_cell(path, cell) == {0: measured(), 1: measured(1, 60.0)}
    assert [m["seed"] for m in json.loads(path.read_text())["measurements"]] == [0, 1]


def test_other_settings_are_measured_anew(recipe, tmp_path):
    path = tmp_path / "cell.json"
    write_cell(path, recipe.cells[0], {0: measured()})
    changed = recipe.in_form("full", changes=["training.clip=3.0"]).cells[0]
    assert changed.slug == recipe.cells[0].slug
    assert read_cell(path, changed) == {}


@pytest.mark.parametrize("spoil", ["half", "number", "nan"])
def test_a_broken_file_is_named(recipe, tmp_path, spoil):
    cell, path = recipe.cells[0], tmp_path / "cell.json"
    write_cell(path, cell, {0: measured()})
    text = path.read_text()
    if spoil == "half":
        path.write_text(text[: len(text) // 2])
    else:
        values = json.loads(text)
        values["measurements"][0]["accuracy"] = "x" if spoil == "number" else float("nan")
        path.write_text(json.dumps(values))
    with pytest.raises(FileFormatError, match="delete it"):
        read_cell(path, cell)

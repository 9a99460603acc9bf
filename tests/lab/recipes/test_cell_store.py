# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from dpcohort.errors import FileFormatError
from dpcohort.lab.recipes.execution import CellStore, Measurement


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
    cell = recipe.cells[0]
    CellStore(tmp_path / "cells").add(cell, measured())
    again = CellStore(tmp_path / "cells")
    again.load(cell)
    assert again.of(cell, 2) == [measured()]
    again.add(cell, measured(1, 60.0))
    third = CellStore(tmp_path / "cells")
    third.load(cell)
    assert [m.seed for m in third.of(cell, 2)] == [0, 1]


def test_other_settings_are_measured_anew(recipe, tmp_path):
    CellStore(tmp_path).add(recipe.cells[0], measured())
    changed = recipe.in_form("full", changes=["training.clip=3.0"]).cells[0]
    store = CellStore(tmp_path)
    store.load(changed)
    assert changed.slug == recipe.cells[0].slug
    assert store.known == {}


@pytest.mark.parametrize("spoil", ["half", "number", "nan"])
def test_a_broken_file_is_named(recipe, tmp_path, spoil):
    cell = recipe.cells[0]
    CellStore(tmp_path).add(cell, measured())
    (path,) = tmp_path.glob("*.json")
    text = path.read_text()
    if spoil == "half":
        path.write_text(text[: len(text) // 2])
    else:
        values = json.loads(text)
        values["measurements"][0]["accuracy"] = "x" if spoil == "number" else float("nan")
        path.write_text(json.dumps(values))
    with pytest.raises(FileFormatError, match="delete it"):
        CellStore(tmp_path).load(cell)


def test_without_a_folder_nothing_is_written(recipe):
    store = CellStore(None)
    store.load(recipe.cells[0])
    store.add(recipe.cells[0], measured())
    assert store.of(recipe.cells[0], 1) == [measured()]

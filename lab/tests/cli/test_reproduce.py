# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

from dpcohort_lab.recipes import recipe_names


def test_the_list_names_every_recipe(terminal):
    shown = terminal("reproduce", "--list")
    for name in recipe_names():
        assert name in shown
    assert {row["name"] for row in terminal.json("reproduce", "--list")} == set(recipe_names())


def test_the_smallest_form_ends_in_table_figure_and_file(terminal, tmp_path):
    out = tmp_path / "r"
    shown = terminal("reproduce", "fashion-mnist", "--smallest", "--out", out, "--device", "cpu")
    words = " ".join(shown.split())
    for expected in ("paper", "ours (mean ± 95 % CI)", "difference", "verdict", "53.53"):
        assert expected in words
    assert shown.count("SMALLEST FORM") == 2
    assert "NOT PRIVATE" in words
    assert "not charged" in words
    assert "for the training steps alone where raw losses were seen (NOT PRIVATE)" in words
    found = json.loads((out / "fashion-mnist.smallest.json").read_text())
    assert found["form"] == "smallest"
    assert "SMALLEST" in found["warning"]
    for ending in ("png", "pdf"):
        assert (out / f"fashion-mnist.smallest.{ending}").stat().st_size > 1000
    cells = sorted((out / "cells" / "fashion-mnist.smallest").glob("*.json"))
    before = [path.stat().st_mtime_ns for path in cells]
    again = terminal.json("reproduce", "fashion-mnist", "--smallest", "--out", out)
    assert [path.stat().st_mtime_ns for path in cells] == before
    assert again["cells"] == found["cells"]


def test_the_selection_figure_needs_no_training(terminal, tmp_path):
    shown = terminal("reproduce", "selection-probability", "--out", tmp_path)
    assert "yes" in shown
    assert "NO" not in shown
    assert (tmp_path / "selection-probability.pdf").exists()


def test_missing_data_says_which_and_how_to_get_it(terminal, tmp_path, monkeypatch):
    from dpcohort.data import _load as load

    monkeypatch.setattr(load, "data_roots", lambda data_dir=None: (tmp_path / "none",))
    monkeypatch.setattr(load, "_candidates", lambda source, data_dir: iter(()))
    terminal("reproduce", "mnist", "--out", tmp_path / "r", code=3)
    assert "'mnist' was not found" in terminal.errors
    for way in ("dpcohort data fetch mnist", "put these files into", "--data-dir", "DPCOHORT_DATA"):
        assert way in terminal.errors
    assert not list((tmp_path / "r").rglob("*.json"))
    # What needs no data is made all the same, and each set is told once.
    terminal("reproduce", "all", "--quick", "--out", tmp_path / "r", code=3)
    assert (tmp_path / "r" / "selection-probability.pdf").exists()
    assert f"1 of {len(recipe_names())} recipes are done" in terminal.errors
    for name in ("mnist", "fashion-mnist", "cifar10"):
        assert terminal.errors.count(f"The data set {name!r} was not found") == 1


def test_bad_input(terminal, tmp_path):
    terminal("reproduce", code=2)
    assert "--list" in terminal.errors
    terminal("reproduce", "mnits", code=2)
    assert "mnist" in terminal.errors
    terminal("reproduce", "mnist", "--quick", "--smallest", code=2)
    terminal("reproduce", "mnist", "--seeds", "0", code=2)
    edited = tmp_path / "edited.toml"
    edited.write_text("[recipe]\ntitle = 3\n")
    terminal("reproduce", edited, code=2)
    assert "edited.toml" in terminal.errors
    terminal("reproduce", "mnist", "--smallest", "--device", "cuda:99", code=2)

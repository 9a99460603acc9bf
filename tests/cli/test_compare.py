# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv

SHORT = ["--set", "training.rounds=4", "--set", "training.cohort_size=3", "--device", "cpu"]


def test_a_grid_ends_in_a_sentence_and_its_runs_can_be_compared_again(
    terminal, digits_config, tmp_path
):
    out = tmp_path / "grid"
    files = ["--csv", tmp_path / "table.csv", "--latex", tmp_path / "table.tex"]
    shown = terminal("compare", digits_config, "--seeds", 2, "--out", out, *files, *SHORT)
    sentence = next(line for line in shown.splitlines() if "better" in line or "worse" in line)
    assert "privacy-aware" in sentence
    assert "points" in shown
    found = terminal.json("compare", out / "unbiased", out / "privacy-aware")
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert {row["runs"]: float(row["mean"]) for row in rows} == {
        name: group["score"]["mean"] for name, group in found["groups"].items()
    }
    for row in rows:  # two seeds of a poor model: Student's interval is wider than all there is
        assert 0 <= float(row["low"]) <= float(row["high"]) <= 1
    lines = (tmp_path / "table.tex").read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrr}"
    assert lines[2] == r"runs & test accuracy & 95 \% CI & loss & worst class & seeds \\"
    assert [line.split(" & ")[0] for line in lines[4:6]] == list(found["groups"])
    assert found["comparisons"][0]["seeds"] == [0, 1]
    assert set(found["groups"]) == {"unbiased", "privacy-aware"}
    again = terminal("compare", out / "unbiased", out / "privacy-aware")
    assert found["comparisons"][0]["sentence"] in " ".join(again.split())


def test_what_cannot_be_compared(terminal, digits_config, config, tmp_path):
    terminal("compare", tmp_path, code=2)
    assert "two run folders" in terminal.errors
    terminal("compare", tmp_path / "a", tmp_path / "b", code=3)
    terminal("compare", config, code=2)
    assert "[grid]" in terminal.errors
    terminal("compare", tmp_path, tmp_path, "--set", "training.rounds=3", code=2)
    terminal("compare", digits_config, "--set", "grid.training={ roundz = [1] }", code=2)
    assert "rounds" in terminal.errors


def test_a_misspelt_entry_of_a_grid_is_found_before_any_training(terminal, digits_config, tmp_path):
    grid = "grid.selection={ rule = ['unbiased', 'privacy-awar'] }"
    out = tmp_path / "out"
    shown = terminal("compare", digits_config, "--set", grid, "--out", out, *SHORT, code=2)
    assert "Did you mean 'privacy-aware'" in terminal.errors
    assert "round" not in shown
    assert not out.exists()

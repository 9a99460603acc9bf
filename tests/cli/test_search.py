# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

from dpcohort.config import commented_config

SHORT = ["--set", "training.rounds=2", "--set", "training.cohort_size=3", "--device", "cpu"]


def test_a_config_with_a_grid_is_searched_and_written_down(terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "digits.toml"
    text = commented_config("digits").replace("total_size = 1_442", "# total_size")
    config.write_text(text)
    out = tmp_path / "found.json"
    grid = ["--set", "grid={ optimiser = { learning_rate = [0.01, 1.0] } }"]
    shown = terminal("search", config, *SHORT, *grid, "--seeds", 1, "--out", out)
    assert "Chosen: optimiser.learning_rate=" in shown
    assert "never the test set" in " ".join(shown.split())
    assert "not charged" in " ".join(shown.split())
    found = json.loads(out.read_text())
    assert len(found["tried"]) == 2
    assert terminal.json("search", config, *SHORT, *grid, "--seeds", 1)["chosen"]


def test_what_cannot_be_searched(terminal, tmp_path, config):
    terminal("search", "importance-compensation", code=2)
    assert "recipe.search" in terminal.errors
    terminal("search", config, code=2)
    terminal("search", "no-such-recipe", code=2)
    terminal("search", tmp_path / "nowhere.toml", code=2)

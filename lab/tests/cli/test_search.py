# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.config import commented_config

RECIPE = """
[recipe]
title = "small"
of = "nothing"
figure = "bars"
[[recipe.mechanisms]]
name = "only"
[[recipe.axes]]
name = "rate"
key = "training.sampling_rate"
values = [0.25, 0.5]
[recipe.search]
when = { rate = 0.25 }
[recipe.search.grid]
"optimiser.learning_rate" = [0.1]
"""

SHORT = ["--set", "training.rounds=2", "--set", "training.cohort_size=3", "--device", "cpu"]


@pytest.fixture
def small_recipe(tmp_path):
    path = tmp_path / "small.toml"
    text = commented_config("digits").replace("total_size = 1_442", "# total_size")
    text = text.replace("rounds = ", "rounds = 2 # ", 1)
    path.write_text(RECIPE + text)
    return path


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
    assert found["command"].startswith("dpcohort search digits.toml --set ")
    assert terminal.json("search", config, *SHORT, *grid, "--seeds", 1)["chosen"]


def test_the_file_tells_the_options_that_decided_what_was_tried(terminal, tmp_path, small_recipe):
    out = tmp_path / "found.json"
    options = ["--at", "rate=0.5", "--set", "training.rounds=1"]
    terminal("search", small_recipe, *options, "--seeds", 1, "--device", "cpu", "--out", out)
    found = json.loads(out.read_text())
    assert found["cells"] == ["only, rate = 0.5"]
    assert found["command"] == "dpcohort search small.toml --at rate=0.5 --set training.rounds=1"


def test_places_that_are_not_there(terminal, small_recipe, config):
    terminal("search", small_recipe, "--at", "rate=7", code=2)
    assert "0.25, 0.5" in terminal.errors
    terminal("search", small_recipe, "--at", "speed=1", code=2)
    assert "an axis: rate" in terminal.errors
    terminal("search", small_recipe, "--at", "rate", code=2)
    assert "AXIS=VALUE" in terminal.errors
    terminal("search", config, "--at", "rate=0.5", code=2)
    assert "goes with a recipe" in terminal.errors


def test_what_cannot_be_searched(terminal, tmp_path, config):
    terminal("search", "importance-compensation", code=2)
    assert "recipe.search" in terminal.errors
    terminal("search", config, code=2)
    terminal("search", "no-such-recipe", code=2)
    terminal("search", tmp_path / "nowhere.toml", code=2)


@pytest.mark.parametrize(
    ("kind", "label", "metric"),
    [
        ("regression", '"days"', "rmse"),
        ("counts", '"visits"', "poisson_deviance"),
        ("multi-label", '["pain", "fever"]', "balanced_accuracy"),
    ],
)
def test_every_task_is_searched_by_what_it_is_judged_by(
    terminal, tmp_path, monkeypatch, kind, label, metric
):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, 400)
    days, visits = age / 1e6, rng.poisson(age / 20)
    cells = np.column_stack([age, np.arange(400) % 2, days, visits, age > 50, age > 70])
    np.savetxt("t.csv", cells, "%.8g", ",", header="age,ward,days,visits,pain,fever", comments="")
    (tmp_path / "clients.csv").write_text("id,epsilon,delta\n0,60,1e-4\n1,60,1e-4\n")
    (tmp_path / "my.toml").write_text(
        '[population]\nclients = "clients.csv"\n[training]\nrounds = 12\ncohort_size = 2\n'
        f'sampling_rate = 1.0\n[data]\nname = "t.csv"\nlabel = {label}\nclient = "ward"\n'
        f'features = ["age"]\nbounds = {{ age = [0, 100] }}\n[task]\nkind = "{kind}"\n'
        + ("bounds = [0, 1e-4]\n" if kind == "regression" else "")
        + "[run]\nsimulate = 0\n[grid]\noptimiser = { learning_rate = [1e-9, 1.0] }\n"
    )
    shown = terminal("search", "my.toml", "--seeds", 1, "--device", "cpu")
    assert "Chosen: optimiser.learning_rate=1.0" in shown
    found = json.loads((tmp_path / "search-my.json").read_text())
    assert found["metric"] == metric
    slow, good = (one["mean"] for one in found["tried"])
    assert found["chosen_mean"] == good == pytest.approx(found["tried"][1][metric][0], abs=1e-3)
    assert (good > slow) == (metric == "balanced_accuracy")
    assert good != slow  # also of numbers that are small in their unit

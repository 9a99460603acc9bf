# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.runs import train


def test_the_papers_figure_from_one_command(terminal, tmp_path):
    found = terminal.json("figure", "selection", "-o", tmp_path / "s.png")
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    panels = {title: np.array(p) for title, p in found["panels"].items()}
    assert len(panels) == 3
    assert all(p.size == 100 for p in panels.values())
    unbiased = panels.pop("unbiased")
    distances = [np.abs(p - unbiased).sum() for p in panels.values()]
    # The larger eta deviates more, as in the paper, and both deviate.
    assert 0 < distances[0] < distances[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    clients = Population.from_arrays(sizes=[300] * 4, epsilon=[0.5, 1, 4, 8], delta=1e-5)
    settings = Training(rounds=4, cohort_size=2, batch_size=30, dimension=650)
    place = tmp_path_factory.mktemp("runs")
    for rule in ("unbiased", "privacy-aware"):
        plan = make_plan(clients, settings, selection=rule, seed=0)
        for seed in (0, 1):
            out = place / rule / f"seed-{seed}"
            train(plan, "logistic", "digits", device="cpu", seed=seed, out=out)
    return place


@pytest.mark.parametrize("name", ["accuracy", "budgets", "noise", "participation", "selection"])
def test_figures_of_a_run(terminal, trained, name, tmp_path):
    out = tmp_path / "f.png"  # a PDF takes twice as long
    found = terminal.json("figure", trained / "unbiased" / "seed-0", name, "-o", out)
    assert found["figure"] == name
    assert out.read_bytes().startswith(b"\x89PNG")


def test_figures_of_groups_of_runs(terminal, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = terminal("figure", trained / "unbiased", trained / "privacy-aware")
    assert "accuracy.png: unbiased, privacy-aware" in shown
    assert (tmp_path / "accuracy.png").exists()
    found = terminal.json("figure", trained / "unbiased", trained / "privacy-aware", "accuracy")
    assert found["groups"] == {"unbiased": 2, "privacy-aware": 2}
    terminal("figure", trained / "unbiased", trained / "privacy-aware", "participation")
    for rule in ("unbiased", "privacy-aware"):
        shutil.copytree(trained / rule / "seed-0", tmp_path / "mixed" / rule)
    # Runs of several settings in one folder are no seeds of one.
    found = terminal.json("figure", tmp_path / "mixed", "accuracy")
    assert found["groups"] == {"unbiased": 1, "privacy-aware": 1}
    terminal("figure", trained / "unbiased", trained / "privacy-aware", "noise", code=2)
    assert "one run or plan" in terminal.errors


def test_figures_of_a_plan(terminal, config, tmp_path):
    terminal("plan", config, "-o", tmp_path / "plan.json")
    terminal("figure", tmp_path / "plan.json", "noise", "-o", tmp_path / "noise.svg")
    assert (tmp_path / "noise.svg").exists()
    terminal("figure", tmp_path / "plan.json", "selection", "-o", tmp_path / "s.svg")
    assert (tmp_path / "s.svg").exists()
    terminal("figure", tmp_path / "plan.json", "accuracy", code=2)
    assert "needs a finished run" in terminal.errors


def test_an_adaptive_run_is_drawn_by_its_draws_and_its_plan_is_not(terminal, tmp_path):
    clients = Population.from_arrays(sizes=[300] * 4, epsilon=[0.5, 1, 4, 8], delta=1e-5)
    settings = Training(rounds=2, cohort_size=2, batch_size=30, dimension=650)
    plan = make_adaptive_plan(clients, settings, seed=0)
    train(plan, "logistic", "digits", device="cpu", seed=0, out=tmp_path / "run")
    for name in ("participation", "selection"):
        found = terminal.json("figure", tmp_path / "run", name, "-o", tmp_path / f"{name}.png")
        assert list(found["plans"]) == ["run"]
        of_plan = ("figure", tmp_path / "run/plan.json", name, "-o", tmp_path / "none.png")
        terminal(*of_plan, code=2)
        assert "Draw this figure of the run" in terminal.errors
    assert not (tmp_path / "none.png").exists()


def test_the_figure_of_a_result(terminal, tmp_path):
    cell = {"mechanism": "ours", "axes": {"s": 100}, "paper": 60.0, "mean": 70.0, "half_width": 1.0}
    result = {"format": "dpcohort reproduction", "schema": 1, "title": "T", "cells": [cell]}
    (tmp_path / "r.json").write_text(json.dumps(result))
    found = terminal.json("figure", tmp_path / "r.json", "-o", tmp_path / "r.pdf")
    assert (found["figure"], found["cells"]) == ("cells", {"ours, s 100": 70.0})
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    terminal("figure", tmp_path / "r.json", "noise", code=2)


def test_what_is_not_there_to_be_drawn(terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    terminal("figure", "runs/none", "accuracy", code=3)
    for word in ("none.toml", "none.json", "none.csv"):
        terminal("figure", word, "noise", code=2)
        assert f"{word} does not exist" in terminal.errors
    terminal("figure", "accuracy", code=2)
    assert "needs a source" in terminal.errors
    terminal("figure", "accuracy", "noise", code=2)
    terminal("figure", ".", "noise", "--set", "training.rounds=3", code=2)
    assert "belong to a config" in terminal.errors
    assert list(tmp_path.iterdir()) == []

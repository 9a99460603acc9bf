# SPDX-License-Identifier: Apache-2.0
"""A new user with hospitals of their own: from records, budgets, model and rule to a good model.

Each case writes its files into an empty folder and gives the tables of a config that are its own;
everything after that is the same for all: the commands of README, as a person would type them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcohort import Run
from dpcohort.cli import main

HOSPITALS, RECORDS = 12, 80

MODEL = """
from torch import nn

def build(input_shape, classes, width=6):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, classes))
"""

RULE = """
from dpcohort.selection.problem import PlannedRule, evaluated

class Quieter(PlannedRule):
    name = "quieter"

    def select(self, problem):
        weights = problem.unbiased / (problem.noise_costs + problem.linear_costs) ** 0.25
        return evaluated(self.name, weights / weights.sum(), problem, settings={})
"""


def _records() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features in [0, 1], a class for each record, and the hospital it is of."""
    rng = np.random.default_rng(5)
    inputs = rng.uniform(size=(HOSPITALS * RECORDS + 400, 7)).astype(np.float32)
    labels = (
        (inputs - 0.5) @ [5, -4, 3, 0, 0, 2, -3] + 0.3 * rng.normal(size=len(inputs)) > 0.4
    ) * 1
    hospital = np.repeat([f"Sankt Ånna {k:02d}" for k in range(HOSPITALS)], RECORDS)
    return inputs, labels, hospital


def arrays_in_a_file(folder: Path) -> dict[str, Any]:
    """An .npz file and a column that says whose record each is."""
    inputs, labels, hospital = _records()
    held = len(hospital)
    np.savez(
        folder / "mine.npz",
        train_inputs=inputs[:held],
        train_labels=labels[:held],
        test_inputs=inputs[held:],
        test_labels=labels[held:],
        mean=0.5,
        std=0.5,
    )
    np.save(folder / "hospital.npy", hospital)
    return {"data": 'name = "mine.npz"\npartition = "column"\ncolumn = "hospital.npy"'}


#: What a user may begin with: a function that writes files and gives tables of the config.
CASES: dict[str, Callable[[Path], dict[str, Any]]] = {"arrays": arrays_in_a_file}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in, with budgets, a model and a rule of one's own."""
    monkeypatch.chdir(tmp_path)
    # Equal budgets in groups, as agreements between hospitals usually are.
    budgets = [0.5] * 3 + [2.0] * 5 + [8.0] * 4
    rows = [f"Sankt Ånna {k:02d},{RECORDS},{e},1e-5" for k, e in enumerate(budgets)]
    Path("clients.csv").write_text("\n".join(["id,size,epsilon,delta", *rows]), encoding="utf-8")
    for name, text in (("trial_net", MODEL), ("trial_rule", RULE)):
        Path(f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def write_config(folder: Path, tables: dict[str, Any]) -> None:
    """The config, with what a case says in place of what is usual."""
    usual = {
        "population": 'clients = "clients.csv"',
        "training": "rounds = 40\ncohort_size = 12\nsampling_rate = 1.0\ndimension = 62",
        "selection": 'rule = "trial_rule:Quieter"',
        "schedule": "seed = 1",
        "model": 'name = "trial_net:build"',
        "optimiser": "learning_rate = 2.0\naverage_decay = 0.8",
    }
    text = "\n\n".join(f"[{name}]\n{lines}" for name, lines in {**usual, **tables}.items())
    (folder / "my.toml").write_text(text + "\n")


def typed(capsys, *words: object, code: int = 0) -> str:
    """What a command prints; never a traceback."""
    capsys.readouterr()
    found = main([str(word) for word in words])
    said = capsys.readouterr()
    assert found == code, said.err + said.out
    assert "Traceback" not in said.err + said.out
    return said.out


@pytest.mark.parametrize("case", CASES)
def test_from_own_records_to_a_good_model(case, folder, capsys, monkeypatch):
    write_config(folder, CASES[case](folder))
    assert "quieter" in typed(capsys, "plan", "my.toml")
    assert "sampling_rate" in typed(capsys, "what-if", "sampling_rate", "my.toml")
    said = typed(capsys, "train", "my.toml", "--out", "runs/first")
    assert "all promises hold" in said
    typed(capsys, "verify", "runs/first")
    page = _report(capsys)

    inputs, labels, hospital = _records()
    test = labels[len(hospital) :]
    trivial = max(test.mean(), 1 - test.mean())
    found = json.loads((folder / "runs/first/result.json").read_text())
    assert found["test"]["accuracy"] > trivial + 0.2
    assert f"{100 * found['test']['accuracy']:.1f} %" in page

    # The file that is scored is the one that predicts.
    predicted = Run.load("runs/first").predict(inputs[len(hospital) :])
    assert (predicted == test).mean() == pytest.approx(found["test"]["accuracy"], abs=1e-6)
    assert found["scored"] == "average"

    _run_it_again(page, capsys, monkeypatch, found)


def _report(capsys) -> str:
    """The page, in which nothing went wrong, and everybody is shown."""
    said = json.loads(typed(capsys, "report", "runs/first", "-o", "first.html", "--json"))
    assert said["problems"] == []
    assert "every promise verified" in said["headline"]
    page = Path("first.html").read_text(encoding="utf-8")
    assert "is not shown" not in page  # who is served, for own data too
    assert "average of iterates" in page
    return page


def _run_it_again(page: str, capsys, monkeypatch, found: dict[str, Any]) -> None:
    """The commands of the page, from another folder, give the same model."""
    block = re.search(r"How to run it again</h2>\s*<pre[^>]*><code>(.*?)</code>", page, re.S)
    assert block is not None
    there, again, verify = block[1].splitlines()
    monkeypatch.chdir("/")
    os.chdir(there.removeprefix("cd "))
    typed(capsys, *again.removeprefix("dpcohort ").split())
    typed(capsys, *verify.removeprefix("dpcohort ").split())
    anew = json.loads(Path("AGAIN/result.json").read_text())
    assert anew["sha256"]["model"] == found["sha256"]["model"]

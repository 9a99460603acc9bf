# SPDX-License-Identifier: Apache-2.0
"""A new user with hospitals of their own: records, budgets, model, rule, loss.

Each case writes its files into an empty folder and ends in a config, as a person would who reads
what ``new`` says; everything after that is the same for all: the commands of README, as typed. The
tables have the faults that tables of spreadsheets have.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcohort import Run
from dpcohort.cli import main
from dpcohort.metrics import METRICS

from .report.html.browser.conftest import ARGUMENTS, CHROMIUM, Reader

HOSPITALS, RECORDS = 12, 80
NAMES = [f"Sankt Ånna {k:02d}" for k in range(HOSPITALS)]
#: Equal budgets in groups, as agreements between hospitals usually are.
BUDGETS = [0.5] * 3 + [2.0] * 5 + [8.0] * 4

OWN_FILES = {
    "trial_net": """
from torch import nn
from dpcohort import plugin

@plugin("model")
def build(input_shape, classes, width=6):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, classes))
""",
    "trial_rule": """
from dpcohort.selection import PlannedRule
from dpcohort.selection import evaluated

class Quieter(PlannedRule):
    name = "quieter"

    def select(self, problem):
        weights = problem.unbiased / (problem.noise_costs + problem.linear_costs) ** 0.25
        return evaluated(self.name, weights / weights.sum(), problem, settings={})
""",
    "trial_loss": """
import torch
from dpcohort import plugin

@plugin("loss")
def log_cosh(outputs, targets):
    away = 4 * (outputs[:, 0] - targets)
    return away + torch.nn.functional.softplus(-2 * away)
""",
}
#: What a person who knows the data, but not its records, fills in; None leaves a line out.
FILLED = {
    "labels": '["gesund", "krank"]',
    "features": '["Alter", "BMI", "Station", "Raucher"]',
    "Alter": "[0, 110]",
    "BMI": "[10, 60]",
    "Station": '["A", "neu"]',  # the third is among the others
    "Raucher": '["ja", "nein"]',
    "bounds": "[0, 30]",
    **dict.fromkeys(("Befund", "Tage", "Besuche", "Schmerz", "Fieber")),
    "test_public": "true",
    # And what they chose: a rule of their own, whole clients, few rounds.
    "rule": '"trial_rule:Quieter"',
    "eta": None,
    "rounds": "40",
    "cohort_size": "12",
    "sampling_rate": "1.0",
}


#: Writes its files into a folder and gives the config; what it is called with is ``dpcohort new``.
Case = Callable[[Path, Callable[..., str]], str]


def arrays_in_a_file(folder: Path, new: Callable[..., str]) -> str:
    """An .npz file and a column that says whose record each is; the config is written by hand."""
    rng = np.random.default_rng(5)
    held = HOSPITALS * RECORDS
    inputs = rng.uniform(size=(held + 400, 7)).astype(np.float32)
    noise = 0.3 * rng.normal(size=len(inputs))
    labels = ((inputs - 0.5) @ [5, -4, 3, 0, 0, 2, -3] + noise > 0.4) * 1
    np.savez(
        folder / "mine.npz",
        train_inputs=inputs[:held],
        train_labels=labels[:held],
        test_inputs=inputs[held:],
        test_labels=labels[held:],
        mean=0.5,
        std=0.5,
    )
    np.save(folder / "hospital.npy", np.repeat(NAMES, RECORDS))
    rows = [f"{name},{RECORDS},{e},1e-5,Dr. X," for name, e in zip(NAMES, BUDGETS, strict=True)]
    text = "\n".join(["id,size,epsilon,delta,contact,", *rows[:5], ",,,,,", *rows[5:], ",,,,,"])
    (folder / "clients.csv").write_text(text, encoding="utf-8-sig")
    return """
[population]
clients = "clients.csv"
[training]
rounds = 40
cohort_size = 12
sampling_rate = 1.0
dimension = 62
[selection]
rule = "trial_rule:Quieter"
[schedule]
seed = 1
[data]
name = "mine.npz"
partition = "column"
column = "hospital.npy"
public = true
[model]
name = "trial_net:build"
[optimiser]
learning_rate = 2.0
average_decay = 0.8
"""


def spreadsheet(folder: Path) -> None:
    """Two tables as a German spreadsheet saves them, with all that people leave in them."""
    rng = np.random.default_rng(5)
    count = HOSPITALS * RECORDS
    age, bmi = rng.uniform(20, 90, count).round(1), rng.uniform(15, 45, count).round(2)
    smoker, ward = rng.choice(["ja", "nein"], count), rng.choice(["A", "süd, alt", "neu"], count)
    effect = np.where(smoker == "ja", 1.0, -1.0)
    sick = (age - 55) / 17 + (bmi - 30) / 10 + effect + 0.3 * rng.normal(size=count)
    columns = {
        "Alter": age,
        "BMI": np.where(rng.uniform(size=count) < 0.05, None, bmi),
        "Station": ward,
        "Raucher": smoker,
        "Notiz": [f"Notiz {k}, frei" for k in range(count)],
        "Klinik": np.repeat(NAMES, RECORDS),
        "Befund": np.where(sick > 0, "krank", "gesund"),
        "Tage": np.clip(10 + 3 * sick + rng.normal(size=count), 0, 30).round(1),
        "Besuche": rng.poisson(np.exp(0.5 * sick)),
        "Schmerz": (sick > 0.8) * 1,
        "Fieber": ((age - 55) / 17 - effect + 0.3 * rng.normal(size=count) > 0) * 1,
    }
    order = rng.permutation(count)
    rows = [list(columns), *([column[k] for column in columns.values()] for k in order)]
    rows[400:400] = rows[200:200] = [[""] * len(columns)]
    clients = [["id", "epsilon", "delta", "Kontakt"]]
    clients += [[n, e, "0,00001", "Dr. X"] for n, e in zip(NAMES, BUDGETS, strict=True)]
    clients += [[""] * 4] * 2
    for name, table in (("patients", rows), ("clients", clients)):
        lines = [";".join([*map(_cell, row), ""]) for row in table]  # and a column without a name
        (folder / f"{name}.csv").write_bytes("\r\n".join(lines).encode("utf-8-sig"))


def _cell(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else str(value).replace(".", ",")


def of_a_spreadsheet(*words: str, **changes: str) -> Case:
    """What ``new`` writes for the tables, with what only a person knows filled in."""

    def case(folder: Path, new: Callable[..., str]) -> str:
        spreadsheet(folder)
        table = ("--from", "patients.csv", "--client", "Klinik", "--clients", "clients.csv")
        for one in {"Station", "Raucher", "Befund"} - {*words}:
            table += ("--category", one)
        table += ("--leave-out", "Notiz")
        text = new(*table, *words).replace('"logistic"', changes.get("model", '"logistic"'))
        for key, value in {**FILLED, **changes}.items():
            line = "" if value is None else f"{key} = {value}"
            text = re.sub(rf"(?m)^{key} = .*$", line, text, count=1)
        assert "FILL IN" not in text
        return text

    return case


OWN_LOSS = '[0, 30]\nloss = "trial_loss:log_cosh"'

#: What a user may begin with, what it is judged by, and by how much a constant is worse.
CASES: dict[str, tuple[Case, str, float]] = {
    "arrays": (arrays_in_a_file, "accuracy", 20.0),
    "classes": (of_a_spreadsheet("--label", "Befund", model='"trial_net:build"'), "accuracy", 25.0),
    "number": (
        of_a_spreadsheet(
            "--label", "Tage", "--task", "regression", bounds=OWN_LOSS, learning_rate="0.3"
        ),
        "rmse",
        2.0,
    ),
    "counts": (of_a_spreadsheet("--label", "Besuche", "--task", "counts"), "poisson_deviance", 0.3),
    "labels": (
        of_a_spreadsheet("--label", "Schmerz", "--label", "Fieber", "--task", "multi-label"),
        "balanced_accuracy",
        25.0,
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in, with a model, a rule and a loss of one's own."""
    monkeypatch.chdir(tmp_path)
    for name, text in OWN_FILES.items():
        Path(f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        assert main(["--allow-code", name]) == 0
    return tmp_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser where there is one; the trial goes on without."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        sync_playwright = None
    if sync_playwright is None or CHROMIUM is None:
        yield None
        return
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


def typed(capsys, *words: object, code: int = 0) -> str:
    """What a command prints; never a traceback."""
    capsys.readouterr()
    found = main([str(word) for word in words])
    said = capsys.readouterr()
    assert found == code, said.err + said.out
    assert "Traceback" not in said.err + said.out
    return said.out


@pytest.mark.parametrize("case", CASES)
def test_from_own_records_to_a_good_model(case, folder, capsys, monkeypatch, browser):
    write, metric, gain = CASES[case]
    text = write(folder, lambda *words: typed(capsys, "new", "-", *words))
    text = text.replace("# public = true", "public = true")  # so that it can be repeated
    (folder / "my.toml").write_text(text, encoding="utf-8")
    assert "quieter" in typed(capsys, "plan", "my.toml")
    said = typed(capsys, "train", "my.toml", "--out", "runs/first")
    assert "all promises hold" in said
    assert "Better than always saying" in said
    typed(capsys, "verify", "runs/first")
    found = json.loads((folder / "runs/first/result.json").read_text())
    _is_clearly_better(found, metric, gain)
    page = _report(capsys)
    assert METRICS[metric].text(found["metrics"][metric]) in page
    if browser is not None:
        with Reader(browser, folder / "first.html"):
            pass  # it asserts that nothing was said, thrown or asked for
    if case == "arrays":
        _predicts_what_was_scored(found)
        assert "sampling_rate" in typed(capsys, "what-if", "sampling_rate", "my.toml")
    if case in ("arrays", "number"):
        _run_it_again(page, capsys, monkeypatch, found)


def _everything_told(capsys, client: str, *draft: str) -> str:
    """What a user reads of a run from the plan to the letter, with no word about entropy."""
    said = [
        typed(capsys, "plan", "my.toml"),
        typed(capsys, "train", "my.toml", "--out", "run"),
        typed(capsys, "verify", "run"),
        typed(capsys, "receipt", "run", client, "--letter", "letter.html", *draft),
        typed(capsys, "report", "run", "-o", "report.html"),
    ]
    files = [Path("letter.html"), Path("report.html"), *Path("run/receipts").glob("*.json")]
    return "\n".join([*said, *(path.read_text(encoding="utf-8") for path in files)])


def test_own_patients_are_protected_unasked(folder, capsys):
    write = of_a_spreadsheet("--label", "Befund", test_public="false")
    text = write(folder, lambda *words: typed(capsys, "new", "-", *words))
    Path("my.toml").write_text(text.replace("rounds = 100", "rounds = 5"), encoding="utf-8")
    told = _everything_told(capsys, NAMES[-1])
    assert "NOT PRIVATE" not in told
    assert "SIMULATION" not in told
    assert "PRIVATE, by the word of those below" in told
    assert "The promise was kept." in told
    assert Run.load("run").is_private


def test_a_run_on_embedded_records_says_everywhere_that_it_is_a_simulation(folder, capsys):
    typed(capsys, "new", "my.toml", "--from", "heart-disease")
    capsys.readouterr()
    told = _everything_told(capsys, "cleveland", "--draft")
    assert "SIMULATION with noise of seed 0, NOT PRIVATE: its data are public." in told
    assert "cleveland   NOT PRIVATE (SIMULATION)\n" in told
    assert "SIMULATION: privacy-aware reaches" in told
    assert 'data-watermark="DRAFT · NOT PRIVATE (SIMULATION)"' in told
    assert "The promise was kept." not in told
    typed(capsys, "receipt", "run", "cleveland", "--letter", "none.html", code=2)
    assert not Path("none.html").exists()


def _is_clearly_better(found: dict[str, Any], metric: str, gain: float) -> None:
    assert found["metrics"].keys() == found["trivial"].keys()
    model, constant = found["metrics"][metric], found["trivial"][metric]
    assert METRICS[metric].gain(model, constant) > gain
    assert found["check"]["low"] > 0
    assert not [words for words in found["warnings"] if "NOT" in words]


def _predicts_what_was_scored(found: dict[str, Any]) -> None:
    """The file that is scored is the one that predicts."""
    with np.load("mine.npz") as mine:
        predicted = Run.load("runs/first").predict(mine["test_inputs"])
        accuracy = (predicted == mine["test_labels"]).mean()
    assert accuracy == pytest.approx(found["metrics"]["accuracy"], abs=1e-6)


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
    assert anew["sha256"]["model.safetensors"] == found["sha256"]["model.safetensors"]

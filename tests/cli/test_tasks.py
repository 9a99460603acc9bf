# SPDX-License-Identifier: Apache-2.0
"""Regression and an own loss through the commands; no headline praises what is no better."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dpcohort.consent import allow_code

CONFIG = """
[population]
count = 4
epsilon = 8.0
[training]
rounds = 30
cohort_size = 3
sampling_rate = 0.5
clip = 0.3
dimension = 4
[data]
name = "./stays.npz"
[task]
kind = "regression"
bounds = [0, 20]
loss = "own_losses_of_a_command:log_cosh"
[optimiser]
learning_rate = 0.5
[run]
simulate = 0
[grid]
optimiser = { learning_rate = [0.000001, 0.5] }
"""
LOSS = """
import torch
from dpcohort import plugin
@plugin("loss")
def log_cosh(outputs, targets):
    return torch.log(torch.cosh(2 * (outputs[:, 0] - targets)))
@plugin("loss")
def mean(outputs, targets):
    return log_cosh(outputs, targets).mean().expand(len(targets))
"""


@pytest.fixture
def stays(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 3)).astype(np.float32)
    y = 10 + 6 * x[:, 0] + rng.normal(0, 1.0, 500)
    np.savez(tmp_path / "stays.npz", train_inputs=x[:400], train_labels=y[:400],
             test_inputs=x[400:], test_labels=y[400:])  # fmt: skip
    (tmp_path / "stays.toml").write_text(CONFIG)
    (tmp_path / "own_losses_of_a_command.py").write_text(LOSS)
    monkeypatch.chdir(tmp_path)
    allow_code("own_losses_of_a_command")
    return tmp_path / "stays.toml"


def test_from_a_config_to_a_report(terminal, stays, tmp_path):
    shown = terminal("train", stays, "-o", "run", "--device", "cpu")
    assert "Test RMSE " in shown
    assert "Better than always saying 10" in shown
    assert "accuracy" not in shown
    assert "test RMSE" in terminal("watch", "run", "--once")
    assert "holds" in terminal("verify", "run")
    terminal("report", "run", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "RMSE over the rounds" in page
    assert "against 3." in page  # of the best constant
    found = terminal.json("train", stays, "-o", "again", "--device", "cpu")
    assert found["check"]["is_better"]
    assert found["result"]["accuracy"] is None
    assert found["runs"][0]["test_rmse"] == pytest.approx(found["metrics"]["rmse"])


def test_a_model_that_is_no_better_is_not_praised(terminal, stays, tmp_path):
    lazy = ["--set", "optimiser.learning_rate=0.000001", "--device", "cpu"]
    shown = terminal("train", stays, "-o", "run", *lazy)
    assert "NOT better than always saying" in shown
    assert "WARNING: the model says about" in shown
    assert "NOT BETTER" in terminal("watch", "run", "--once")
    terminal("report", "run", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    head = page[page.index('id="headline"') :].split("</h1>")[0]
    assert "NOT BETTER" in head
    assert "reaches" not in head
    assert 'class="verdict bad"' in head


def test_a_comparison_is_by_the_metric_and_warns(terminal, stays):
    shown = terminal("compare", stays, "--seeds", 2, "--device", "cpu")
    assert "test RMSE" in shown
    assert "WARNING: learning_rate 1e-06: test RMSE" in shown
    assert "learning_rate 0.5 better than learning_rate 1e-06 by" in shown
    assert " in RMSE, 95 % CI " in shown
    found = terminal.json("compare", stays, "--seeds", 2, "--device", "cpu")
    assert [c["is_better"] for c in found["checks"].values()] == [False, True]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("task.loss=own_losses_of_a_command:mean", "mixes the examples"),
        ("task.loss=pinball", "squared, huber, quantile, module:function"),
        ("task.kind=classification", "type of train_labels"),
        ("task.bounds=[5]", "two numbers"),
        ("task.bounds=", "taken from the clients' records would tell"),
        ("task.class_weights=[1.0]", "are for classes and labels"),
        ("task.quantile=0.9", "goes with loss"),
        ("task.losss=huber", "Did you mean 'loss'"),
        ("data.name=digits", "labels of classification"),
    ],
)
def test_bad_tasks_are_one_clear_message(terminal, stays, tmp_path, change, words):
    changes = ["--set", change]
    if "classification" in change:
        changes += ["--set", "task.bounds=", "--set", "task.loss="]
    terminal("train", stays, "-o", "run", *changes, "--device", "cpu", code=2)
    assert words in terminal.errors
    assert not (tmp_path / "run").exists()


def test_what_a_loss_says_of_a_record_is_withheld_in_a_private_run(terminal, stays, tmp_path):
    (tmp_path / "own_losses_of_a_command.py").write_text(
        LOSS + "@plugin('loss')\ndef talks(outputs, targets):\n"
        "    if len(targets) > 5 and len(targets) != 129:  # as many as it is tried on\n"
        "        raise ValueError(f'a stay of {targets[0]:.6f}, {len(targets)} of them')\n"
        "    return log_cosh(outputs, targets)\n"
    )
    sys.modules.pop("own_losses_of_a_command", None)
    own = ["--set", "task.loss=own_losses_of_a_command:talks", "--device", "cpu"]
    terminal("train", stays, "-o", "seen", *own, code=2)
    assert "failed on records of a round (own_losses_of_a_command.py, line 13)" in terminal.errors
    assert "ValueError: a stay of" in terminal.errors
    # Alone, no record is many; what fails counts for nothing and is not told.
    shown = terminal("train", stays, "-o", "private", "--set", "run.simulate=", *own)
    assert "stay of" not in shown + terminal.errors
    sys.modules.pop("own_losses_of_a_command", None)

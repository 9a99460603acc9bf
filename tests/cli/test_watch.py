# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.cli import _train as commands
from dpcohort.runs import train

ROUNDS = 4


@pytest.fixture(scope="module")
def plan():
    clients = Population.from_arrays(sizes=[300] * 3, epsilon=[1.0, 4.0, 8.0], delta=1e-5)
    settings = Training(rounds=ROUNDS, cohort_size=2, batch_size=30, dimension=650)
    return make_plan(clients, settings, seed=0)


def _train(plan, out, callbacks=()):
    return train(plan, "logistic", "digits", device="cpu", out=out, callbacks=callbacks)


class Stop:
    """Ends a training after some rounds, as a crash would."""

    def __init__(self, rounds):
        self.rounds = rounds

    def on_round(self, record, run):
        if run.rounds_done == self.rounds:
            raise KeyboardInterrupt


@pytest.fixture
def half(plan, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        _train(plan, tmp_path / "half", [Stop(2)])
    return tmp_path / "half"


def test_a_finished_run_is_told_round_by_round(terminal, plan, tmp_path):
    run = _train(plan, tmp_path / "run")
    shown = terminal("watch", tmp_path / "run").splitlines()
    assert [line.split("  ")[0] for line in shown[:ROUNDS]] == [
        f"round {t}/{ROUNDS}" for t in range(1, ROUNDS + 1)
    ]
    assert f"finished, round {ROUNDS}/{ROUNDS}, test accuracy {100 * run.test_accuracy:.1f} %" in (
        " ".join(shown)
    )
    assert "dpcohort verify" in shown[-1]


def test_a_run_that_goes_on_is_followed_to_its_end(terminal, plan, half):
    """The other shell trains on while this one watches."""

    def go_on():
        train(plan, "logistic", "digits", device="cpu", out=half, resume=True)

    trainer = threading.Timer(0.3, go_on)
    trainer.start()
    shown = terminal("watch", half, "--interval", 0.1)
    trainer.join()
    assert shown.count("round 2/4") == 1
    assert "finished, round 4/4" in shown


def test_how_it_stands(terminal, half):
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    assert "not finished, round 2/4" in terminal("watch", half, "--once")
    found = terminal.json("watch", half)
    assert (found["rounds_done"], found["rounds"], found["finished"]) == (2, 4, False)
    assert before == {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}


def test_a_run_that_stands_still_is_noticed(terminal, monkeypatch, half):
    """It says so once, and a person who stops watching stops nothing else."""
    monkeypatch.setattr(commands, "_QUIET_SECONDS", 0.05)
    looks = []

    def look_then_leave(seconds):
        looks.append(seconds)
        if len(looks) > 3:
            raise KeyboardInterrupt
        threading.Event().wait(0.06)

    monkeypatch.setattr(commands.time, "sleep", look_then_leave)
    shown = terminal("watch", half)
    assert shown.count("is the training still running?") == 1
    assert "the run goes on by itself" in shown


def test_no_run(terminal, tmp_path):
    terminal("watch", tmp_path / "none", code=3)
    assert "none" in terminal.errors

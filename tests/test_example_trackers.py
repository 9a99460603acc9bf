# SPDX-License-Identifier: Apache-2.0
"""The examples of trackers, with stand-ins for the trackers' packages."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dpcohort import Population, Run, Training, load_dataset, make_plan, train
from dpcohort.errors import InputError

TRACKERS = Path(__file__).parents[1] / "examples" / "trackers"
ROUNDS = 3


class Sent(list):
    """Every call of a tracker's functions: name, arguments, options."""

    def keep(self, name, answer=None):
        def call(*values, **options):
            self.append((name, values, options))
            return answer

        return call

    def of(self, name):
        return [(values, options) for kind, values, options in self if kind == name]


@pytest.fixture
def sent(monkeypatch):
    made = Sent()
    mlflow, wandb = ModuleType("mlflow"), ModuleType("wandb")
    for name in ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics"):
        setattr(mlflow, name, made.keep(name))
    mlflow.end_run = made.keep("end")
    run = SimpleNamespace(log=made.keep("log_metrics"), finish=made.keep("end"))
    wandb.init, wandb.Settings = made.keep("init", run), dict
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return made


@pytest.fixture(scope="module")
def plan():
    clients = Population.from_arrays(sizes=[400] * 3, epsilon=[2, 4, 8], delta=1e-5)
    settings = Training(rounds=ROUNDS, cohort_size=2, batch_size=40, dimension=650)
    return make_plan(clients, settings, seed=0)


def log_of(name, tmp_path):
    members = runpy.run_path(str(TRACKERS / f"{name}_log.py"))
    return members["MLflowLog"]() if name == "mlflow" else members["WandbLog"](str(tmp_path))


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_each_round_is_logged_with_public_numbers_only(name, plan, sent, tmp_path):
    train(plan, "logistic", "digits", device="cpu", callbacks=[log_of(name, tmp_path)])
    rows = sent.of("log_metrics")
    assert [options["step"] for _, options in rows] == [1, 2, 3]
    assert {key for (numbers,), _ in rows for key in numbers} == {"accuracy", "loss"}
    assert len(sent.of("end")) == 1


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_private_training_refuses_it_and_the_finished_run_is_logged(
    name, plan, sent, tmp_path, monkeypatch
):
    out, log = tmp_path / "run", log_of(name, tmp_path)
    secret, private = replace(load_dataset("digits"), public=False), {"device": "cpu", "out": out}
    with pytest.raises(InputError, match=r"tell how many records were drawn. Nothing was spent"):
        train(plan, "logistic", secret, callbacks=[log], **private)
    assert not out.exists()
    assert sent.of("log_metrics") == []
    train(plan, "logistic", secret, **private)
    monkeypatch.setattr(sys, "argv", ["log", "place", str(out)])
    runpy.run_path(str(TRACKERS / f"{name}_log.py"), run_name="__main__")
    assert len(sent.of("log_metrics")) == len(Run.load(out).history) == ROUNDS


def test_wandb_looks_at_nothing_by_itself(plan, sent, tmp_path):
    train(plan, "logistic", "digits", device="cpu", callbacks=[log_of("wandb", tmp_path)])
    ((_, asked),) = sent.of("init")
    assert (asked["mode"], asked["dir"]) == ("offline", str(tmp_path))
    assert asked["config"]["plan"] == plan.sha256
    looking = asked["settings"]
    assert looking["x_disable_stats"]
    assert looking["x_disable_meta"]
    assert looking["console"] == "off"

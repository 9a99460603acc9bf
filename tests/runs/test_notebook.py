# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of plans and runs, and what one asks of a run."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
from torch import nn

from dpcohort import Run
from dpcohort.engine import ConstantStep, Optimiser
from dpcohort.errors import DataMissingError, InputError
from dpcohort.runs import MLflowLog, ProgressBar, WandbLog, compare_runs, train


@pytest.fixture(scope="module")
def averaged():
    return Optimiser(local_step=ConstantStep(1.0), average_decay=0.5)


def test_a_line_and_a_table_say_what_it_is(plan, digits):
    run = train(plan, "logistic", digits, device="cpu")
    for thing in (plan, run, compare_runs([run], [run], names=("<b>a", "b"))):
        assert len(repr(thing)) < 250
        shown = thing._repr_html_()
        assert shown.startswith("<table>")
        assert "<b>" not in shown
    assert "last iterate" in repr(run)
    assert "NOT PRIVATE" in repr(run)


def test_the_scored_model_is_the_file_and_the_one_that_predicts(plan, digits, averaged, tmp_path):
    out = tmp_path / "run"
    run = train(plan, "logistic", digits, device="cpu", optimiser=averaged, out=out)
    read = Run.load(out)
    assert run.scored == read.scored == "average"
    assert any((run.model[key] != run.average[key]).any() for key in run.model)
    for weights in (read.model, run.model), (read.average, run.average):
        assert all((weights[0][key] == weights[1][key]).all() for key in run.model)
    for one in (run, read):
        hits = one.predict(digits.test_inputs) == digits.test_labels
        assert hits.mean() == pytest.approx(run.test_accuracy, abs=1e-6)


def test_a_network_without_a_name_is_given_again(plan, digits, tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    run = train(plan, network, digits, device="cpu", out=tmp_path / "run")
    read = Run.load(tmp_path / "run")
    with pytest.raises(InputError, match=r"run.predict\(inputs, model="):
        read.predict(digits.test_inputs)
    found = read.predict(digits.test_inputs, model=network)
    assert (found == run.predict(digits.test_inputs)).all()
    with pytest.raises(InputError, match="not the one that was trained"):
        read.predict(digits.test_inputs, model=nn.Linear(64, 10))
    with pytest.raises(InputError, match="shape of inputs"):
        read.predict(np.zeros((3, 5)), model=network)


def test_plot_and_report(plan, digits, tmp_path):
    run = train(plan, "logistic", digits, device="cpu", out=tmp_path / "run")
    assert run.plot().axes
    page = run.report(tmp_path / "page.html", data=digits)
    assert "last iterate" in page.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="out="):
        train(plan, "logistic", digits, device="cpu").report(tmp_path / "none.html")


class _Tqdm:
    """Stands in for tqdm's bar."""

    made: list[_Tqdm] = []  # noqa: RUF012

    def __init__(self, total, desc, bar_format):
        self.n, self.total, self.form, self.words, self.closed = 0, total, bar_format, "", False
        self.made.append(self)

    def set_postfix_str(self, words, refresh):
        self.words = words

    def update(self, more):
        self.n += more

    def close(self):
        self.closed = True


def stand_in(monkeypatch, name, **members):
    """Put a module in the place of one that need not be installed."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)  # torch asks which modules there are
    for member, value in members.items():
        setattr(module, member, value)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("private", [False, True])
def test_a_bar_counts_rounds_and_of_a_private_run_no_time(plan, digits, monkeypatch, private):
    stand_in(monkeypatch, "tqdm")
    stand_in(monkeypatch, "tqdm.auto", tqdm=_Tqdm)
    settings = {"device": "cpu", "private_entropy": private}
    train(plan, "logistic", digits, callbacks=[ProgressBar()], **settings)
    bar = _Tqdm.made[-1]
    assert bar.closed
    assert bar.n == bar.total == plan.training.rounds
    assert "accuracy" in bar.words
    assert ("elapsed" in bar.form) != private


def test_without_tqdm_the_bar_is_richs(plan, digits, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    train(plan, "logistic", digits, device="cpu", callbacks=[ProgressBar()])
    shown = capsys.readouterr()
    assert f"{plan.training.rounds}/{plan.training.rounds}" in shown.err
    assert shown.out == ""


class _Client:
    """Stands in for MLflow's client; keeps what it was sent, and after which round."""

    def __init__(self, tracking_uri=None):
        self.sent, self.times, self.uri = [], set(), tracking_uri
        self.experiments = []

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        if self.uri.endswith(":2"):
            raise RuntimeError("refused")
        self.experiments.append(name)
        return name

    def create_run(self, where, start_time, run_name):
        self.times.add(start_time)
        info = type("Info", (), {"run_id": "1"})
        return type("Made", (), {"info": info})

    def log_batch(self, run_id, metrics=(), params=()):
        self.sent.append([*metrics, *params])
        self.times |= {when for _, _, when, _ in metrics}

    def set_terminated(self, run_id, end_time):
        self.times.add(end_time)


@pytest.fixture
def mlflow(monkeypatch):
    stand_in(monkeypatch, "mlflow")
    entities = {"Metric": lambda *values: values, "Param": lambda *values: values}
    stand_in(monkeypatch, "mlflow.entities", **entities)
    stand_in(monkeypatch, "mlflow.tracking", MlflowClient=_Client)
    stand_in(monkeypatch, "mlflow.exceptions", MlflowException=RuntimeError)


def test_mlflow_gets_public_numbers_round_by_round(plan, digits, tmp_path, mlflow):
    log = MLflowLog(tmp_path / "tracked")
    train(plan, "logistic", digits, device="cpu", evaluate_every=3, callbacks=[log])
    assert log._client.uri == f"sqlite:///{tmp_path / 'tracked' / 'mlflow.db'}"
    settings, *rounds = log._client.sent
    assert len(rounds) == plan.training.rounds
    assert ("plan", plan.sha256) in settings
    names = {name for part in rounds for name, *_ in part}
    assert names == {"noise.largest", "noise.smallest", "accuracy.model", "loss.model"}


def test_mlflow_learns_no_time_of_a_private_run(plan, digits, mlflow):
    seen = []

    class Watch:
        def on_round(self, record, run):
            seen.append(len(log._client.sent))

    log = MLflowLog("http://127.0.0.1:1")
    assert log._client.experiments == ["dpcohort"]  # made before the first round, not when it ended
    train(plan, "logistic", digits, device="cpu", private_entropy=True, callbacks=[log, Watch()])
    assert seen == [0] * (plan.training.rounds - 1) + [2]  # all at the end
    assert len(log._client.times) == 1


def test_a_server_that_does_not_answer_is_named_before_anything_is_trained(mlflow):
    with pytest.raises(InputError, match="does not answer: refused"):
        MLflowLog("http://127.0.0.1:2")


def test_mlflow_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(DataMissingError, match=r"dpcohort\[mlflow\]"):
        MLflowLog()


class _Wandb:
    """Stands in for a run of Weights & Biases; keeps what it was given."""

    def __init__(self, **asked):
        self.asked, self.rows, self.finished = asked, [], False

    def log(self, row, step):
        self.rows.append((step, row))

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    made = []
    begin = {"init": lambda **asked: made.append(_Wandb(**asked)) or made[-1], "Settings": dict}
    stand_in(monkeypatch, "wandb", **begin)
    return made


def test_wandb_gets_public_numbers_offline_and_looks_at_nothing(plan, digits, tmp_path, wandb):
    log = WandbLog(tmp_path / "tracked", name="mine")
    train(plan, "logistic", digits, device="cpu", evaluate_every=3, callbacks=[log])
    (told,) = wandb
    assert told.asked["mode"] == "offline"
    assert told.asked["dir"] == str(tmp_path / "tracked")
    assert told.asked["config"]["plan"] == plan.sha256
    looking = told.asked["settings"]
    assert looking["x_disable_stats"]
    assert looking["x_disable_meta"]
    assert looking["console"] == "off"
    assert [step for step, _ in told.rows] == [*range(1, plan.training.rounds + 1)]
    assert set(told.rows[-1][1]) == {
        "noise/largest",
        "noise/smallest",
        "accuracy/model",
        "loss/model",
    }
    assert told.finished


def test_wandb_is_refused_in_a_private_training_and_takes_the_finished_run(
    plan, digits, tmp_path, wandb
):
    log, out = WandbLog(tmp_path), tmp_path / "run"
    private = {"device": "cpu", "private_entropy": True, "out": out}
    with pytest.raises(InputError, match=r"tell how many records were drawn. Nothing was spent"):
        train(plan, "logistic", digits, callbacks=[log], **private)
    assert not out.exists()
    assert wandb == []
    train(plan, "logistic", digits, **private)
    run = Run.load(out)
    for record in run.history:
        log.on_round(record, run)
    assert len(wandb[0].rows) == plan.training.rounds
    assert wandb[0].finished


def test_wandb_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(DataMissingError, match=r"dpcohort\[wandb\]"):
        WandbLog(tmp_path)


def test_a_run_that_says_nothing_of_its_inputs_predicts_nothing(plan, digits):
    run = train(plan, "logistic", digits, device="cpu")
    older = replace(run, inputs={})
    with pytest.raises(InputError, match="does not say how its inputs are scaled"):
        older.predict(digits.test_inputs)

# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of plans and runs, and what one asks of a run."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
from torch import nn

from dpcohort import Run
from dpcohort.engine import ConstantStep, Optimiser
from dpcohort.errors import InputError
from dpcohort.runs import ProgressBar, compare_runs, train


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
    wrong = digits.test_inputs[:2].astype(float)
    wrong[1, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match=r"inputs\[.*0, 0, 0\] = nan"):
        run.predict(wrong)


def test_plot_and_report(plan, digits, tmp_path):
    run = train(plan, "logistic", digits, device="cpu", out=tmp_path / "run")
    assert run.plot().axes
    assert run.plot()._repr_png_().startswith(b"\x89PNG")
    page = run.report(tmp_path / "page.html")
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
def test_a_bar_counts_rounds_and_of_a_private_run_no_time(plan, secret, monkeypatch, private):
    stand_in(monkeypatch, "tqdm")
    stand_in(monkeypatch, "tqdm.auto", tqdm=_Tqdm)
    settings = {"device": "cpu", "simulate": None if private else 0}
    train(plan, "logistic", secret, callbacks=[ProgressBar()], **settings)
    bar = _Tqdm.made[-1]
    assert bar.closed
    assert bar.n == bar.total == plan.training.rounds
    assert "accuracy" in bar.words
    assert ("elapsed" in bar.form) != private

# SPDX-License-Identifier: Apache-2.0
"""Figures of runs, plans and receipts, drawn from one small training."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.errors import InputError
from dpcohort.report._figures import (
    accuracy_band,
    accuracy_figure,
    paper_style,
    save_figure,
    save_plan_figure,
    worth_figure,
)
from dpcohort.runs import train
from dpcohort.tuning import Worth


def _plan(rule):
    clients = Population.from_arrays(
        sizes=[300, 250, 200, 150, 100],
        epsilon=[0.5, 1.0, 2.0, 8.0, float("nan")],
        delta=[1e-5] * 4 + [float("nan")],
        public=[False] * 4 + [True],
    )
    settings = Training(rounds=6, cohort_size=4, sampling_rate=0.1, dimension=650)
    return make_plan(clients, settings, selection=rule, seed=0)


@pytest.fixture(scope="session")
def plans():
    return {rule: _plan(rule) for rule in ("unbiased", "privacy-aware")}


@pytest.fixture(scope="session")
def runs(plans):
    return [
        train(
            plans["privacy-aware"], "logistic", "digits", device="cpu", seed=seed, evaluate_every=2
        )
        for seed in (0, 1)
    ]


def test_matplotlibs_settings_are_left_as_they_were():
    matplotlib.get_backend()  # chosen when it is first asked for
    before = matplotlib.rcParams.copy()
    with paper_style():
        assert not matplotlib.rcParams["axes.spines.top"]
    assert matplotlib.rcParams == before


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_the_ending_decides_and_the_file_repeats(ending, magic, runs, tmp_path):
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    for path in (first, second):
        save_figure(accuracy_figure({"aware": runs}), path)
    assert first.read_bytes().startswith(magic)
    if ending != "svg":  # its ids are random
        assert first.read_bytes() == second.read_bytes()


def test_text_stays_text(runs, tmp_path):
    save_figure(accuracy_figure({"privacy-aware": runs}), tmp_path / "a.svg")
    assert "privacy-aware</text>" in (tmp_path / "a.svg").read_text()


def test_another_ending_writes_nothing(runs, tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.pdf or \.svg"):
        save_figure(accuracy_figure({"aware": runs}), tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


def test_the_band_is_the_interval_over_seeds(runs):
    rounds, found = accuracy_band(runs)
    assert rounds.tolist() == [2, 4, 6]
    last = [100 * run.test_accuracy for run in runs]
    assert found[-1].mean == pytest.approx(np.mean(last))
    assert found[-1].low < min(last) <= max(last) < found[-1].high


def test_lines_and_bands(runs):
    axis = accuracy_figure({"two seeds": runs, "one seed": runs[:1]}).axes[0]
    assert [line.get_label() for line in axis.lines] == ["two seeds", "one seed"]
    assert axis.lines[0].get_linestyle() != axis.lines[1].get_linestyle()
    assert len(axis.collections) == 1  # a single seed has no band
    assert axis.lines[1].get_ydata()[-1] == pytest.approx(100 * runs[0].test_accuracy)


def test_only_rounds_that_all_were_evaluated_at_count(plans, runs):
    other = train(
        plans["privacy-aware"], "logistic", "digits", device="cpu", seed=2, evaluate_every=3
    )
    rounds, found = accuracy_band([*runs, other])
    assert rounds.tolist() == [6]
    assert found[0].count == 3


def test_nothing_to_draw():
    with pytest.raises(InputError, match="at least one group"):
        accuracy_figure({})


def test_a_plan_is_drawn_beside_sizes_unless_its_cohorts_are_chosen_later(plans, tmp_path):
    save_plan_figure(plans["privacy-aware"], tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    assert "privacy-aware" in text
    people, training = plans["unbiased"].population, plans["unbiased"].training
    with pytest.raises(
        InputError, match="power-of-choice decides in each round and has none before the training"
    ):
        save_plan_figure(make_adaptive_plan(people, training, seed=0), tmp_path / "later.svg")


def test_what_budgets_are_worth_is_a_line_for_each_kind_of_data(plans):
    found = Worth(
        source="generated data",
        factors=(1.0, 2.0),
        noise=(2.0, 1.0),
        sets=("clear", "clear", "blurred"),
        scores=((0.5, 0.7, 0.3), (0.6, 0.8, 0.4)),
        gains=(),
        training=plans["unbiased"].training,
    )
    (axis,) = worth_figure(found).axes
    clear, blurred = (line.get_ydata().tolist() for line in axis.lines)
    assert clear == pytest.approx([60.0, 70.0])
    assert blurred == pytest.approx([30.0, 40.0])

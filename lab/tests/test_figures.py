# SPDX-License-Identifier: Apache-2.0
"""Figures of budgets, noise, participation and cells, from one small training."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import paper_noise_multiplier
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.errors import InputError
from dpcohort.explain import papers_noise
from dpcohort.runs import train, who_was_heard
from dpcohort_lab.figures import (
    budgets_figure,
    cells_figure,
    noise_figure,
    participation_figure,
)
from dpcohort_lab.recipes.page import read_reproduction


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
        train(plans["privacy-aware"], "logistic", "digits", device="cpu", seed=seed)
        for seed in (0,)
    ]


def test_a_point_a_client_under_the_line(runs):
    receipts = runs[0].receipts()
    (kept,) = budgets_figure(receipts).axes[0].collections
    points = np.asarray(kept.get_offsets())
    wanted = [(r.promised_epsilon, r.certified_epsilon) for r in receipts if not r.public]
    assert np.allclose(points, wanted)
    assert np.all(points[:, 1] <= points[:, 0])


def test_a_broken_promise_stands_out(runs):
    receipts = runs[0].receipts()
    broken = [
        replace(r, certified_epsilon=2 * r.promised_epsilon) if i == 0 else r
        for i, r in enumerate(receipts)
    ]
    axis = budgets_figure(broken).axes[0]
    assert [c.get_label() for c in axis.collections] == ["kept", "BROKEN"]


def test_public_clients_have_no_budget(runs):
    with pytest.raises(InputError, match="no receipt has a budget"):
        budgets_figure([r for r in runs[0].receipts() if r.public])


CELLS = [
    {"mechanism": "a $x", "axes": {"s": 100}, "paper": 60.0, "mean": 70.0, "half_width": 1.5},
    {"mechanism": "b", "axes": {"s": 100}, "mean": 50.0},
    {"mechanism": "not measured", "axes": {}},
]


def result(tmp_path, cells):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"format": "dpcohort reproduction", "schema": 1, "cells": cells}))
    return read_reproduction(path)


def test_cells_beside_the_papers(tmp_path):
    axis = cells_figure(result(tmp_path, CELLS)).axes[0]
    interval, ours, paper = axis.lines
    assert list(interval.get_xdata()) == [68.5, 71.5]
    assert list(ours.get_xdata()) == [70.0, 50.0]
    assert list(paper.get_xdata()) == [60.0]
    # Names are text, whatever they contain.
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a $x, s 100", "b, s 100"]


def test_nothing_measured_is_nothing_to_draw(tmp_path):
    with pytest.raises(InputError, match="no cell"):
        cells_figure(result(tmp_path, CELLS[2:]))


def test_points_are_the_noise_on_the_mean(plans):
    plan = plans["unbiased"]
    paper, deployed = noise_figure(plan).axes[0].collections
    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    wanted = plan.noise_multipliers[held] / plan.batch_sizes[held]
    assert np.allclose(deployed.get_offsets()[:, 1], wanted)
    assert np.allclose(deployed.get_offsets()[:, 0], plan.population.epsilon[held])
    assert np.all(paper.get_offsets()[:, 1] > wanted)


def test_the_papers_noise_is_for_the_plans_steps(plans):
    plan = plans["unbiased"]
    k = int(np.flatnonzero(plan.drawn)[0])
    alone = paper_noise_multiplier(
        epsilon=float(plan.population.epsilon[k]),
        delta=1e-5,
        sampling_rate=float(plan.sampling_rates[k]),
        steps=int(plan.steps[k]),
    )
    assert papers_noise(plan)[k] == pytest.approx(alone)
    assert np.isnan(papers_noise(plan)[-1])  # public


def test_public_clients_alone_have_no_noise():
    nan = float("nan")
    clients = Population.from_arrays(sizes=[50], epsilon=[nan], delta=[nan], public=[True])
    plan = make_plan(clients, Training(rounds=2, cohort_size=1, batch_size=5), seed=0)
    with pytest.raises(InputError, match="no noise"):
        noise_figure(plan)


@pytest.mark.parametrize(("reports", "stamped"), [("private", False), ("raw", True)])
def test_noise_of_an_adaptive_plan_is_for_its_caps(reports, stamped):
    clients = Population.from_arrays(sizes=[90] * 4, epsilon=[0.5, 1, 2, 4], delta=1e-5)
    training = Training(rounds=4, cohort_size=2, batch_size=9, local_steps=2)
    plan = make_adaptive_plan(clients, training, reports=reports, seed=0)
    axis = noise_figure(plan).axes[0]
    paper, deployed = axis.collections
    assert np.allclose(deployed.get_offsets()[:, 1], plan.noise_multipliers / 9)
    at_caps = paper_noise_multiplier(
        epsilon=clients.epsilon, delta=1e-5, sampling_rate=0.1, steps=2 * plan.counts
    )
    assert np.allclose(paper.get_offsets()[:, 1], at_caps / 9)
    assert "for the caps" in axis.get_title()
    assert ("NOT PRIVATE" in axis.get_title()) is stamped
    assert ("certified" in deployed.get_label()) is not stamped


def test_bars_are_who_was_heard(plans):
    axis = participation_figure(plans, groups=2).axes[0]
    heights = [bar.get_height() for bar in axis.patches]
    wanted = [g.heard for plan in plans.values() for g in who_was_heard(plan, groups=2)]
    assert heights == wanted
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == list(plans)


def test_plans_of_other_clients_do_not_go_together(plans):
    clients = Population.from_arrays(ids=["x", "y"], sizes=[50, 50], epsilon=[1, 2], delta=1e-5)
    other = make_plan(clients, Training(rounds=2, cohort_size=1, batch_size=5), seed=0)
    with pytest.raises(InputError, match="same clients"):
        participation_figure({**plans, "other": other})
    with pytest.raises(InputError, match="one or more plans"):
        participation_figure({})


def test_an_adaptive_plan_needs_the_draws_of_its_run():
    clients = Population.from_arrays(sizes=[90] * 4, epsilon=[0.5, 1, 2, 4], delta=1e-5)
    training = Training(rounds=4, cohort_size=2, batch_size=9)
    plans = {"run": make_adaptive_plan(clients, training, rule="rpow-d", seed=0)}
    with pytest.raises(InputError, match="Draw this figure of the run"):
        participation_figure(plans)
    drawn = {"run": np.array([4, 2, 2, 0])}
    bars = participation_figure(plans, draws=drawn, groups=4).axes[0].patches
    assert [bar.get_height() for bar in bars] == [2.0, 1.0, 1.0, 0.0]

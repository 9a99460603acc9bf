# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from dpcohort.clients import Population
from dpcohort.plan import make_plan
from dpcohort.report.plan_summary import plan_table, summarise
from dpcohort.training import Training


@pytest.fixture(scope="module")
def plan():
    rng = np.random.default_rng(0)
    clients = Population.from_arrays(
        sizes=rng.integers(300, 900, 40), epsilon=rng.uniform(0.1, 5, 40), delta=1e-5
    )
    return make_plan(clients, Training(rounds=20, cohort_size=5, batch_size=50), seed=2)


def _shown(plan, width=100, **options):
    console = Console(width=width, color_system=None, file=io.StringIO())
    console.print(plan_table(plan, **options))
    return console.file.getvalue()


def test_numbers_are_the_plans(plan):
    summary = summarise(plan)
    assert summary["clients"] == 40
    assert summary["drawn"] == int((plan.schedule.counts > 0).sum())
    assert summary["certified"] == summary["drawn"]
    assert summary["bias"] == np.abs(plan.selection.probabilities - plan.selection.unbiased).sum()
    assert summary["noise_to_clip"] == plan.noise_to_clip < summary["unbiased_noise_to_clip"]


def test_expected_unbiased_noise_is_what_an_unbiased_plan_adds(plan):
    unbiased = make_plan(plan.population, plan.training, selection="unbiased", seed=2)
    expected = summarise(plan)["unbiased_noise_to_clip"]
    assert unbiased.noise_to_clip == pytest.approx(expected, rel=0.15)


def test_the_table_shows_those_heard_more_and_less(plan):
    change = plan.selection.probabilities - plan.selection.unbiased
    order = np.argsort(change, kind="stable")
    shown = _shown(plan, rows=6)
    for k in (*order[:3], *order[-3:]):
        assert plan.population.ids[k] in shown
    assert plan.population.ids[int(order[20])] not in shown


def test_all_clients_fit_when_rows_allow(plan):
    shown = _shown(plan, rows=40)
    assert all(name in shown for name in plan.population.ids)


def test_a_narrow_terminal_still_shows_names(plan):
    shown = _shown(plan, width=60, rows=4)
    assert max(len(line) for line in shown.splitlines()) <= 60

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from dpcohort.accounting import Contract, Event, History, Segment
from dpcohort.clients import Population
from dpcohort.plan import make_plan
from dpcohort.report._plan_summary import plan_table, plan_values, summarise
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
    assert summary["drawn"] == int((plan.counts > 0).sum())
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


def test_where_noise_is_distributed_both_epsilons_and_the_others_counted_on_are_shown(plan):
    people = Population.from_arrays(
        sizes=[500, 400, 300, 200],
        epsilon=[0.5, 1.0, 4.0, np.nan],
        delta=[1e-5] * 3 + [np.nan],
        public=[False] * 3 + [True],
    )
    training = Training(rounds=6, cohort_size=3, sampling_rate=0.2)
    distributed = make_plan(people, training, accountant=Contract(trust="distributed"), seed=2)
    values = plan_values(distributed)
    alone = distributed.certificate.alone_epsilon[:3].max()
    assert values["summary"]["alone_epsilon_max"] == alone
    assert values["summary"]["trust"]["honest"] == 3
    assert values["clients"]["weight"] == distributed.noise.weights.tolist()
    assert "weight" not in plan_values(plan)["clients"]
    shown = " ".join(_shown(distributed).split())
    assert "of the weight moved" in shown
    assert "at least 3 shares of noise" in shown
    assert f"a client spends up to ε {alone:.4g}; weights are public" in shown
    assert "alone ε" in shown


def test_what_deserves_a_warning_is_said():
    people = Population.from_arrays(
        ids=["a", "b"], sizes=[500, 400], epsilon=[12.0, 14.0], delta=0.01, allow_large_delta=True
    )
    once = Training(rounds=1, cohort_size=2, sampling_rate=0.1)
    lifted = make_plan(people, once, accountant="paper", guard="lift", selection="uniform", seed=0)
    shown = " ".join(_shown(lifted).split())
    assert f"{int(lifted.noise.lifted.sum())} lifted from the paper's noise" in shown
    assert "delta is at least 1/size for 2 clients" in shown
    past = History((Event.of(noise_multiplier=20.0, sampling_rate=0.1, steps=3),))
    before = Segment(plan="", ledger="", rounds=3, source="seed", spent={"a": past})
    later = make_plan(people, once, selection="uniform", before=[before], seed=0)
    assert "goes on after 1 run with 3 rounds" in " ".join(_shown(later).split())

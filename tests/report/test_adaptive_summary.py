# SPDX-License-Identifier: Apache-2.0
"""Adaptive plans on a screen."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from dpcohort import Population, Training
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.errors import InputError
from dpcohort.explain import explain_client
from dpcohort.report._plan_summary import plan_table, plan_values


def plan_of(rule="power-of-choice", **options):
    nan = float("nan")
    budgets = np.array([*np.linspace(1, 8, 19), nan])
    people = Population.from_arrays(
        sizes=[90] * 20,
        epsilon=budgets,
        delta=np.where(np.isnan(budgets), nan, 1e-5),
        public=np.isnan(budgets),
    )
    training = Training(rounds=10, cohort_size=2, batch_size=9)
    return make_adaptive_plan(people, training, rule=rule, seed=0, **options)


def text_of(plan, **options):
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(plan_table(plan, **options))
    return screen.export_text()


def test_caps_reports_and_noise_are_said():
    text = " ".join(text_of(plan_of(rule_settings={"d": 4})).split())
    assert "20 clients (1 public), 10 rounds of 2 draws" in text
    assert "power-of-choice (d 4, shrink False)" in text
    assert "drawn at most 2 times and asked at most 4 times" in text
    assert "10 % of a budget" in text
    assert "NOT PRIVATE" not in text
    assert "public" in text


def test_raw_reports_are_shouted_and_certify_nothing():
    text = text_of(plan_of(reports="raw"))
    assert "NOT PRIVATE: reports are raw" in text
    assert plan_values(plan_of(reports="raw"))["private"] is False


@pytest.mark.parametrize("rows", [4, 30])
def test_the_strictest_and_the_loosest_are_shown(rows):
    text = text_of(plan_of("clustered"), rows=rows)
    assert "client-00 " in text
    assert "client-19" in text
    assert ("client-09 " in text) == (rows == 30)


def test_values_are_plain():
    plan = plan_of()
    values = plan_values(plan)
    assert json.loads(json.dumps(values))["participation"]["rule"] == "power-of-choice"
    assert values["clients"]["report_cap"][0] == plan.reports.caps[0]


def _plan(rule="power-of-choice", **settings):
    clients = Population.from_arrays(
        ids=["strict", "open", "gift"],
        sizes=[90, 90, 90],
        epsilon=[0.5, 4.0, np.nan],
        delta=[1e-5, 1e-5, np.nan],
        public=[False, False, True],
    )
    training = Training(rounds=4, cohort_size=1, batch_size=9)
    return make_adaptive_plan(clients, training, rule=rule, seed=0, **settings)


def test_numbers_are_the_plans_own():
    plan = _plan()
    told = explain_client(plan, "strict")
    assert told.numbers["draw_cap"] == plan.counts[0]
    assert told.numbers["report_cap"] == plan.reports.caps[0]
    assert told.numbers["noise_std"] == plan.noise_multipliers[0] / 9
    assert told.numbers["report_std"] == plan.report_stds[0]
    assert told.numbers["certified_epsilon"] == plan.certified_epsilon[0] <= 0.5
    assert json.loads(json.dumps(told.to_dict()))["rule"] == "power-of-choice"
    for part in ("strict holds 90 records", "at most", "10 % of its budget", "of 0.5."):
        assert part in told.text()


def test_a_public_client_needs_no_noise():
    told = explain_client(_plan(), "gift")
    for name in ("epsilon", "report_std", "certified_epsilon"):
        assert told.numbers[name] is None
    assert "It adds no noise." in told.text()


def test_raw_reports_have_no_epsilon():
    told = explain_client(_plan(reports="raw"), "strict")
    assert told.numbers["certified_epsilon"] is None
    assert "NOT PRIVATE" in told.text()
    assert "certified" not in told.text()


def test_a_rule_that_asks_nobody():
    told = explain_client(_plan("clustered", rule_settings={"clusters": 2}), "open")
    assert told.numbers["report_cap"] is None
    assert "asked" not in told.text()


def test_an_unknown_client_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="strict"):
        explain_client(_plan(), "strickt")

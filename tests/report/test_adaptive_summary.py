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
from dpcohort.report.adaptive_summary import adaptive_plan_table, adaptive_plan_values


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
    screen.print(adaptive_plan_table(plan, **options))
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
    assert adaptive_plan_values(plan_of(reports="raw"))["private"] is False


@pytest.mark.parametrize("rows", [4, 30])
def test_the_strictest_and_the_loosest_are_shown(rows):
    text = text_of(plan_of("clustered"), rows=rows)
    assert "client-00 " in text
    assert "client-19" in text
    assert ("client-09 " in text) == (rows == 30)


def test_values_are_plain():
    plan = plan_of()
    values = adaptive_plan_values(plan)
    assert json.loads(json.dumps(values))["rule"] == "power-of-choice"
    assert values["clients"]["report_cap"][0] == plan.caps.reports[0]

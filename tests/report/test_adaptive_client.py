# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from dpcohort import Population, Training
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.errors import InputError
from dpcohort.explain import ClientExplanation
from dpcohort.report.adaptive_client import explain_adaptive_client


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
    told = explain_adaptive_client(plan, "strict")
    assert told.draw_cap == plan.caps.draws[0]
    assert told.report_cap == plan.caps.reports[0]
    assert told.noise_std == plan.noise_multipliers[0] / 9
    assert told.report_std == plan.report_stds[0]
    assert told.certified_epsilon == plan.certified_epsilon[0] <= 0.5
    assert json.loads(json.dumps(told.to_dict()))["rule"] == "power-of-choice"
    for part in ("strict holds 90 records", "at most", "10 % of its budget", "of 0.5."):
        assert part in told.text()


def test_a_public_client_needs_no_noise():
    told = explain_adaptive_client(_plan(), "gift")
    assert (told.epsilon, told.report_std, told.certified_epsilon) == (None, None, None)
    assert "It adds no noise." in told.text()


def test_raw_reports_have_no_epsilon():
    told = explain_adaptive_client(_plan(reports="raw"), "strict")
    assert told.certified_epsilon is None
    assert "NOT PRIVATE" in told.text()
    assert "certified" not in told.text()


def test_a_rule_that_asks_nobody():
    told = explain_adaptive_client(_plan("clustered", rule_settings={"clusters": 2}), "open")
    assert told.report_cap is None
    assert "asked" not in told.text()


def test_an_unknown_client_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="strict"):
        explain_adaptive_client(_plan(), "strickt")


def test_who_a_client_is_is_told_in_the_words_of_every_plan():
    for told in (explain_adaptive_client(_plan(), name) for name in _plan().population.ids):
        who = ClientExplanation(
            **{f.name: getattr(told, f.name) for f in fields(ClientExplanation)}
        )
        assert told.text().splitlines()[0] == who.text()
        assert told.to_dict().items() >= who.to_dict().items()

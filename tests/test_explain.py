# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.accounting import calibrate_noise, certify_epsilon
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.explain import explain_client
from dpcohort.plan import make_plan
from dpcohort.selection import PlannedRule, evaluated, rule_from_settings
from dpcohort.training import Training


@pytest.fixture(scope="module")
def plan():
    clients = Population.from_arrays(
        ids=["strict", "middle", "open", "gift"],
        sizes=[600, 500, 400, 300],
        epsilon=[0.5, 1.5, 6.0, np.nan],
        delta=[1e-5, 1e-5, 1e-5, np.nan],
        public=[False, False, False, True],
    )
    training = Training(rounds=20, cohort_size=4, batch_size=60)
    return make_plan(clients, training, seed=1)


def test_numbers_are_the_plans_own(plan):
    told = plan.explain("open").numbers
    assert told["probability"] == plan.selection.probabilities[2]
    assert told["draws"] == plan.counts[2]
    assert told["noise_multiplier"] == plan.noise_multipliers[2]
    assert told["noise_std"] == plan.noise_multipliers[2] / 60
    assert told["certified_epsilon"] == plan.certified_epsilon[2]
    assert told["expected_draws"] == pytest.approx(80 * told["probability"])


def test_one_more_draw_is_priced_by_the_accountant(plan):
    told = plan.explain("open").numbers
    settings = {"delta": 1e-5, "sampling_rate": 60 / 400}
    before = calibrate_noise(epsilon=6.0, steps=told["steps"], **settings)
    after = calibrate_noise(epsilon=6.0, steps=told["steps"] + 1, **settings)
    assert told["one_more_draw"] == pytest.approx((after / before) ** 2)
    spent = certify_epsilon(
        noise_multiplier=told["noise_multiplier"],
        steps=told["steps"] + 1,
        method="pld",
        **settings,
    )
    assert told["epsilon_of_one_more_draw"] == spent
    assert spent > told["certified_epsilon"]


def test_a_larger_budget_is_heard_more_often(plan):
    larger = explain_client(plan, "strict", larger_epsilon=3.0).numbers["larger_budget"]
    assert larger["epsilon"] == 3.0
    assert larger["times_as_often"] > 1
    changed = make_plan(
        plan.population.with_budget("strict", plan.population["middle"].budget),
        plan.training,
        seed=1,
    )
    same = explain_client(plan, "strict", larger_epsilon=1.5).numbers["larger_budget"]
    assert same["probability"] == pytest.approx(changed.selection.probabilities[0], rel=1e-9)


def test_a_public_client_has_no_promise_to_explain(plan):
    explanation = plan.explain("gift")
    assert explanation.numbers["public"]
    assert explanation.numbers["epsilon"] is None
    assert explanation.numbers["larger_budget"] is None
    assert "needs no privacy" in explanation.text() or "need no privacy" in explanation.text()
    assert "adds no noise" in explanation.text()


def test_a_client_that_is_never_drawn_is_told_so():
    clients = Population.from_arrays(
        ids=["silent", "a", "b"], sizes=[10, 4000, 4000], epsilon=[0.01, 5, 5], delta=1e-5
    )
    training = Training(rounds=3, cohort_size=2, sampling_rate=0.1)
    explanation = make_plan(clients, training, seed=0).explain("silent")
    assert explanation.numbers["draws"] == 0
    assert explanation.numbers["noise_multiplier"] is None
    assert "spends nothing" in explanation.text()
    assert "first draw" in explanation.text()
    json.dumps(explanation.to_dict())


def test_paper_plans_are_explained_with_the_papers_noise(plan):
    paper = make_plan(plan.population, plan.training, accountant="paper", seed=1)
    told = paper.explain("open").numbers
    # The printed variance is proportional to the number of steps.
    assert told["one_more_draw"] == pytest.approx(1 + 1 / told["steps"])


@pytest.mark.parametrize("epsilon", [1.5, 0.1, float("nan"), float("inf")])
def test_the_larger_budget_must_be_larger(plan, epsilon):
    with pytest.raises(InputError, match="larger epsilon"):
        explain_client(plan, "middle", larger_epsilon=epsilon)


class _Flipped(PlannedRule):
    """Probability against size: no rule of this package, and not installed."""

    name = "flipped"

    def select(self, problem):
        p = problem.unbiased[::-1]
        return evaluated(self.name, p, problem, settings={})


def test_a_rule_of_ones_own_is_told_by_its_plan_as_far_as_it_goes(plan):
    own = make_plan(plan.population, plan.training, selection=_Flipped(), seed=1)
    told = explain_client(own, "strict")
    assert told.numbers["larger_budget"] is None
    assert "by the rule flipped" in told.text()
    assert "cannot be told from the plan alone" in told.text()
    with pytest.raises(InputError, match="'flipped', which is not installed"):
        explain_client(own, "strict", larger_epsilon=2.0)
    whole = explain_client(own, "strict", larger_epsilon=2.0, rule=_Flipped())
    assert whole.numbers["larger_budget"]["times_as_often"] == pytest.approx(1)
    assert "as often as now" in whole.text()
    # A public client has no epsilon to ask about.
    assert "cannot be told" not in explain_client(own, "gift").text()


def test_a_client_that_is_left_out_is_told_without_infinities():
    clients = Population.from_arrays(sizes=[300] * 3, epsilon=[0.1, 4.0, 8.0], delta=1e-5)
    training = Training(rounds=10, cohort_size=2, batch_size=30, dimension=10)
    rule = rule_from_settings("threshold", threshold=1.0)
    plan = make_plan(clients, training, selection=rule, seed=0)
    still = plan.explain("client-0").text()
    assert "epsilon 0.2 instead of 0.1 it would be left out as well." in still
    drawn = explain_client(plan, "client-0", larger_epsilon=2.0).text()
    assert "it would be drawn, with probability 0.3333." in drawn
    assert "inf" not in still + drawn

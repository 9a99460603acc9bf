# SPDX-License-Identifier: Apache-2.0
"""What all rules have in common, and how one is made from a name and settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.errors import InputError
from dpcohort.plugins import RULES
from dpcohort.schedule import draw_schedule
from dpcohort.selection import (
    PlannedRule,
    SelectionProblem,
    evaluated,
    rule_from_settings,
    solve_selection,
)

NAMES = list(RULES["selection"])
SETTINGS = {"threshold": {"threshold": 1.0}}


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_gives_a_selection_measured_against_the_optimum(name, problem):
    rule = rule_from_settings(name, **SETTINGS.get(name, {}))
    assert isinstance(rule, PlannedRule)
    assert rule.name == name
    chosen = rule.select(problem)
    assert chosen.rule == name
    assert chosen.probabilities.sum() == pytest.approx(1.0, abs=1e-14)
    assert (chosen.probabilities >= 0).all()
    assert chosen.eta == 20.0
    optimum = solve_selection(problem.unbiased, 20.0 * problem.noise_costs)
    assert chosen.lower_bound == optimum.lower_bound
    assert chosen.objective >= optimum.lower_bound
    assert chosen.gap == chosen.objective - chosen.lower_bound
    assert np.array_equal(chosen.unbiased, problem.unbiased)


@st.composite
def problems(draw):
    """Any population of two to six clients, some public, with any noise."""
    size = draw(st.integers(2, 6))

    def column(low, high):
        return np.array(draw(st.lists(st.floats(low, high), min_size=size, max_size=size)))

    weights, public = column(0.01, 1.0), column(0.0, 1.0) < 0.2
    noise, linear = column(0.0, 50.0), column(0.0, 1.0) * draw(st.sampled_from([0.0, 1.0]))
    return SelectionProblem(
        unbiased=weights / weights.sum(), epsilon=np.where(public, np.nan, column(0.05, 9.0)),
        public=public, noise_costs=np.where(public, 0.0, noise),
        linear_costs=np.where(public, 0.0, linear), total_steps=100, smoothness=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(problem=problems(), data=st.data())
def test_any_problem_gives_probabilities_that_follow_the_clients(name, problem, data):
    given_settings = {"threshold": {"threshold": 1e-3}}.get(name, {})
    rule = rule_from_settings(name, **given_settings)
    p = rule.select(problem).probabilities
    assert (p >= 0.0).all()
    assert p.sum() == pytest.approx(1.0, abs=1e-9)
    order = np.array(data.draw(st.permutations(range(problem.size))))
    columns = ("unbiased", "epsilon", "public", "noise_costs", "linear_costs")
    renamed = replace(problem, **{column: getattr(problem, column)[order] for column in columns})
    assert rule.select(renamed).probabilities == pytest.approx(p[order], abs=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_systematic_draws_give_every_rule_its_counts(name, private_problem):
    p = rule_from_settings(name, **SETTINGS.get(name, {})).select(private_problem).probabilities
    drawn = draw_schedule(
        p, rounds=30, cohort_size=5, draws="systematic", rng=np.random.default_rng(0)
    )
    assert (np.abs(drawn.counts - 150 * p) < 1.0 + 1e-9).all()


def test_privacy_aware_is_the_best_of_all_rules(private_problem):
    objectives = {
        name: rule_from_settings(name, **SETTINGS.get(name, {})).select(private_problem).objective
        for name in NAMES
    }
    assert min(objectives, key=objectives.get) == "privacy-aware"


def test_a_rule_of_ones_own_needs_no_base_class(problem):
    class Mine:
        name = "mine"

        def select(self, problem):
            return evaluated(self.name, problem.unbiased, problem, settings={})

        def effective_epsilon(self, problem):
            return problem.epsilon

    assert isinstance(Mine(), PlannedRule)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("privacy-awar", {}, "Did you mean 'privacy-aware'"),
        ("best", {}, "one of best-threshold, "),
        ("privacy-aware", {"bias_cup": 0.1}, "Did you mean 'bias_cap'"),
        ("privacy-aware", {"x": 0.1}, "one of eta, bias_cap, floor, cap"),
        ("unbiased", {"eta": 0.1}, "has no settings"),
        ("threshold", {}, "needs the setting 'threshold'"),
        ("threshold", {"threshold": -1}, "threshold = -1"),
        ("privacy-aware", {"eta": 1.0, "bias_cap": 0.1}, "both given"),
        ("privacy-aware", {"eta": "automatic"}, "'auto'"),
        ("privacy-aware", {"bias_cap": 3.0}, "bias_cap = 3.0"),
        ("privacy-aware", {"floor": 1.5}, "floor = 1.5"),
        ("privacy-aware", {"cap": 0.0}, "cap = 0.0"),
        ("epsilon-proportional", {"public_epsilon": 0}, "public_epsilon = 0"),
    ],
)
def test_bad_names_and_settings_are_explained(name, settings, message):
    with pytest.raises(InputError, match=message):
        rule_from_settings(name, **settings)

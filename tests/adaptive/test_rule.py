# SPDX-License-Identifier: Apache-2.0
"""Every adaptive rule: the contract, permutation equivariance, and what it can reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.adaptive import Report
from dpcohort.adaptive.rule import AdaptiveRule
from dpcohort.plugins import REGISTRIES

RULES = REGISTRIES["adaptive"].built_in


def busy_view(view_of, rule):
    """Round 3 of a training of 12 clients, with some history and one public client."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 90, 12)
    reports = tuple(
        Report(t, int(k), float(v))
        for t in range(3)
        for k, v in zip(rng.permutation(10)[:4], rng.uniform(0, 4, 4), strict=True)
    )
    updates = {k: rng.normal(size=6) for k in range(9)} if rule.watches_updates else {}
    return view_of(
        sizes,
        round=3,
        cohort_size=4,
        reports=reports,
        updates=updates,
        public=np.arange(12) == 11,
        draws_left=np.array([5, 4, 3, 2, 1, 0, 5, 5, 5, 5, 5, 48]),
    )


def answers_to(view, asked):
    """Answers that belong to clients, whatever their place in the list."""
    return {int(k): float(len(view.ids[k]) + view.chances("answer")[k]) for k in asked}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_what_a_rule_must_be(name):
    rule = REGISTRIES["adaptive"].make(name, {})
    assert isinstance(rule, AdaptiveRule)
    assert rule.name == name
    card = REGISTRIES["adaptive"].card(name)
    assert "not said" not in (card.summary, card.needs, card.leaks, card.reference)


@pytest.mark.parametrize("name", RULES)
def test_choices_are_distinct_candidates_and_repeat(name, view_of):
    rule = REGISTRIES["adaptive"].make(name, {})
    view = busy_view(view_of, rule)
    asked = rule.ask(view)
    assert np.isin(asked, view.can_report).all()
    assert (asked.size > 0) == (rule.statistic is not None)
    chosen = rule.choose(view, answers_to(view, asked))
    assert 0 < chosen.size <= view.cohort_size
    assert np.isin(chosen, view.candidates).all()
    assert np.unique(chosen).size == chosen.size
    assert np.array_equal(chosen, rule.choose(view, answers_to(view, asked)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RULES)
def test_the_order_of_the_clients_does_not_matter(name, seed, view_of, permuted):
    rule = REGISTRIES["adaptive"].make(name, {})
    view = replace(busy_view(view_of, rule), seed=seed)
    order = np.random.default_rng(seed).permutation(12)
    other = permuted(view, order)
    asked, asked_other = rule.ask(view), rule.ask(other)
    assert {view.ids[k] for k in asked} == {other.ids[k] for k in asked_other}
    chosen = rule.choose(view, answers_to(view, asked))
    chosen_other = rule.choose(other, answers_to(other, asked_other))
    assert {view.ids[k] for k in chosen} == {other.ids[k] for k in chosen_other}


@pytest.mark.parametrize("name", RULES)
def test_budgets_and_unasked_facts_do_not_sway_a_rule(name, view_of):
    """None of these rules weighs epsilon: a change of it changes no choice."""
    rule = REGISTRIES["adaptive"].make(name, {})
    view = busy_view(view_of, rule)
    other = replace(view, epsilon=np.linspace(1, 9, 12))
    assert np.array_equal(rule.ask(view), rule.ask(other))
    answers = answers_to(view, rule.ask(view))
    assert np.array_equal(rule.choose(view, answers), rule.choose(other, answers))

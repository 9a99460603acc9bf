# SPDX-License-Identifier: Apache-2.0
"""Every adaptive rule: the contract, the order of clients, and each against cases done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpcohort.adaptive import AdaptiveRule, Report
from dpcohort.adaptive._rules import (
    BanditLoss,
    ClusteredUpdates,
    DonatedData,
    PowerOfChoice,
    RecentPowerOfChoice,
    StatisticalUtility,
)
from dpcohort.errors import InputError
from dpcohort.plugins import RULES, make_rule, rule_card

# every rule


NAMES = list(RULES["adaptive"])


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


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_is_what_a_rule_must_be(name):
    rule = make_rule("adaptive", name, {})
    assert isinstance(rule, AdaptiveRule)
    assert rule.name == name
    card = rule_card("adaptive", name)
    assert "not said" not in {card[key] for key in ("summary", "needs", "leaks", "reference")}


@pytest.mark.parametrize("name", NAMES)
def test_choices_are_distinct_candidates_and_repeat(name, view_of):
    rule = make_rule("adaptive", name, {})
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
@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_clients_does_not_matter(name, seed, view_of, permuted):
    rule = make_rule("adaptive", name, {})
    view = replace(busy_view(view_of, rule), seed=seed)
    order = np.random.default_rng(seed).permutation(12)
    other = permuted(view, order)
    asked, asked_other = rule.ask(view), rule.ask(other)
    assert {view.ids[k] for k in asked} == {other.ids[k] for k in asked_other}
    chosen = rule.choose(view, answers_to(view, asked))
    chosen_other = rule.choose(other, answers_to(other, asked_other))
    assert {view.ids[k] for k in chosen} == {other.ids[k] for k in chosen_other}


@pytest.mark.parametrize("name", NAMES)
def test_budgets_and_unasked_facts_do_not_sway_a_rule(name, view_of):
    """None of these rules weighs epsilon: a change of it changes no choice."""
    rule = make_rule("adaptive", name, {})
    view = busy_view(view_of, rule)
    other = replace(view, epsilon=np.linspace(1, 9, 12))
    assert np.array_equal(rule.ask(view), rule.ask(other))
    answers = answers_to(view, rule.ask(view))
    assert np.array_equal(rule.choose(view, answers), rule.choose(other, answers))


# power-of-choice


def test_the_largest_reported_losses_are_drawn(view_of):
    rule = PowerOfChoice(d=4)
    answers = {0: 0.3, 2: 1.7, 3: 0.9, 5: 1.1}
    assert rule.choose(view_of([10] * 6), answers).tolist() == [2, 5]


def test_d_candidates_are_asked_in_proportion_to_their_sizes(view_of):
    rule, sizes = PowerOfChoice(d=2), [10, 20, 70]
    hits = np.zeros(3)
    for seed in range(3000):
        asked = rule.ask(view_of(sizes, seed=seed))
        assert asked.size == 2
        hits[asked] += 1
    # Drawn first with p, or second: p_j p_k / (1 - p_j), by hand for 0.1, 0.2, 0.7.
    p = np.array([0.1, 0.2, 0.7])
    second = np.array([sum(p[j] * p[k] / (1 - p[j]) for j in range(3) if j != k) for k in range(3)])
    expected = 3000 * (p + second)
    assert np.abs(hits - expected).max() < 5 * np.sqrt(3000 * 0.25)


def test_shrinking_does_not_follow_the_noise(view_of):
    stds = np.array([0.1, 0.1, 0.1, 8.0])
    view, answers = view_of([10] * 4, report_stds=stds), {0: 1.0, 1: 2.0, 2: 1.7, 3: 9.0}
    assert 3 in PowerOfChoice().choose(view, answers)
    assert set(PowerOfChoice(shrink=True).choose(view, answers).tolist()) == {1, 2}
    with pytest.raises(InputError, match="shrink"):
        PowerOfChoice(shrink=1)


# cpow-d


def test_its_reports_are_subsampled_events(plan_of):
    plan = plan_of("cpow-d")
    assert plan.reports.terms.mini_batch
    assert plan.history(0, draws=1, reports=2).events[1].mechanism.sampling_rate == 10 / 30
    # The same share buys less noise on the sum than a look at all records does.
    assert (plan.reports.multipliers < plan_of("power-of-choice").reports.multipliers).all()


# rpow-d


REPORTS = (Report(0, 0, 3.0), Report(0, 1, 0.5), Report(1, 2, 1.0), Report(1, 0, 0.2))


def test_unheard_clients_come_first_then_the_last_loss(view_of):
    rule = RecentPowerOfChoice()
    view = view_of([10] * 4, round=2, reports=REPORTS)
    # Last losses: 0 -> 0.2 (the 3.0 is old), 1 -> 0.5, 2 -> 1.0, 3 never.
    assert rule.ask(view).tolist() == [3, 2]
    view = view_of([10] * 3, round=2, reports=REPORTS)
    assert rule.ask(view).tolist() == [2, 1]


def test_those_asked_are_those_drawn(view_of):
    rule = RecentPowerOfChoice(d=3)
    view = view_of([10] * 6, round=2, reports=REPORTS)
    asked = rule.ask(view)
    assert asked.size == 2
    answers = {int(k): 9.0 for k in asked}
    assert sorted(rule.choose(view, answers).tolist()) == sorted(asked.tolist())
    assert np.isin(asked, view.can_report).all()


# ucb-cs


def test_the_index_by_hand(view_of):
    # gamma 1/2, round 2: client 0 reported 2.0 at 0 (weight 1/4) and 1.0 at 1 (weight 1/2).
    reports = (Report(0, 0, 2.0), Report(1, 0, 1.0), Report(1, 1, 3.0))
    view = view_of([30, 10, 60], round=2, reports=reports)
    index = BanditLoss(gamma=0.5, exploration=2.0).indices(view)
    horizon = 1 + 0.5 + 0.25
    bonus = lambda count: math.sqrt(2 * 4 * math.log(horizon) / count)  # noqa: E731
    assert index[0] == pytest.approx(0.3 * ((0.5 + 0.5) / 0.75 + bonus(0.75)))
    assert index[1] == pytest.approx(0.1 * (3.0 + bonus(0.5)))
    assert index[2] == np.inf


# oort


UTILITY_REPORTS = (Report(0, 0, 4.0), Report(1, 1, 1.0), Report(2, 2, 9.0))


def test_the_score_by_hand(view_of):
    # Utilities 10 * 2, 20 * 1, 30 * 3 = 20, 20, 90; nothing cut at quantile 1; range 70.
    view = view_of([10, 20, 30, 5], round=3, reports=UTILITY_REPORTS)
    scores = StatisticalUtility(clip_quantile=1.0).scores(view)
    stale = [math.sqrt(0.1 * math.log(4) / t) for t in (1, 2, 3)]
    assert scores[:3] == pytest.approx([stale[0], stale[1], 1 + stale[2]])
    assert math.isnan(scores[3])


def test_the_largest_utilities_are_cut(view_of):
    # Sorted 20, 20, 90: the 0.5 quantile, taken from below, is 20, so all are equal.
    view = view_of([10, 20, 30], round=3, reports=UTILITY_REPORTS)
    scores = StatisticalUtility(clip_quantile=0.5).scores(view)
    assert scores == pytest.approx([math.sqrt(0.1 * math.log(4) / t) for t in (1, 2, 3)])


def test_a_noisy_report_below_zero_counts_as_zero(view_of):
    view = view_of([10, 10], round=1, reports=(Report(0, 0, -3.0), Report(0, 1, 1.0)))
    assert np.isfinite(StatisticalUtility().scores(view)).all()


def test_the_unheard_get_the_exploration_share(view_of):
    reports = tuple(Report(0, k, 1.0 + k) for k in range(6))
    view = view_of([10] * 12, round=1, cohort_size=4, reports=reports)
    asked = StatisticalUtility(exploration=0.5, decay=1.0).ask(view)
    assert (asked >= 6).sum() == 2
    assert asked.size == 4


def test_far_below_the_best_is_not_drawn(view_of):
    reports = tuple(Report(0, k, v) for k, v in enumerate([25.0, 24.0, 0.1, 0.1, 0.1]))
    rule = StatisticalUtility(exploration=0.0, least_exploration=0.0, cut_off=0.9)
    for seed in range(20):
        view = view_of([10] * 5, round=1, reports=reports, seed=seed)
        assert set(rule.ask(view).tolist()) == {0, 1}


@pytest.mark.parametrize("name", ["exploration", "decay", "clip_quantile", "cut_off"])
def test_settings_are_shares(name):
    with pytest.raises(InputError, match=name):
        StatisticalUtility(**{name: 1.5})


# clustered


#: Three directions; lengths differ and do not matter.
UPDATES = {
    0: np.array([1.0, 0.1, 0.0]),
    1: np.array([9.0, 0.0, 0.5]),
    2: np.array([0.0, 2.0, 0.1]),
    3: np.array([0.1, 5.0, 0.0]),
    4: np.array([0.0, 0.2, 3.0]),
    5: np.array([0.1, 0.0, 0.7]),
}


def test_the_three_directions_are_found(view_of):
    for seed in range(5):
        view = view_of([10] * 6, updates=UPDATES, seed=seed)
        labels = ClusteredUpdates(clusters=3).labels(view, np.arange(6))
        assert labels[0] == labels[1]
        assert labels[2] == labels[3]
        assert labels[4] == labels[5]
        assert len(set(labels.tolist())) == 3


def test_every_cluster_is_heard(view_of):
    for seed in range(10):
        view = view_of([90, 90, 1, 1, 1, 1], updates=UPDATES, seed=seed, cohort_size=3)
        chosen = ClusteredUpdates(clusters=3).choose(view, {})
        assert {int(k) // 2 for k in chosen} == {0, 1, 2}


def test_clients_never_drawn_come_first(view_of):
    view = view_of([10] * 8, updates=UPDATES, cohort_size=3)
    chosen = ClusteredUpdates(clusters=3).choose(view, {})
    assert {6, 7} < set(chosen.tolist())


# donated


PUBLIC = np.array([False] * 6 + [True] * 2)


@pytest.mark.parametrize(("share", "donors"), [(0.01, 1), (0.5, 2), (0.9, 2)])
def test_public_clients_get_their_share(view_of, share, donors):
    view = view_of([10] * 8, public=PUBLIC, cohort_size=4)
    chosen = DonatedData(public_share=share).choose(view, {})
    assert PUBLIC[chosen].sum() == donors
    assert chosen.size == 4

# SPDX-License-Identifier: Apache-2.0
"""What a rule sees, on which terms clients report, and how a cohort comes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpcohort.adaptive import ReportTerms, RoundView
from dpcohort.adaptive._rule import (
    draw_without_replacement,
    filled_cohort,
    largest,
    rule_cohort,
    shrunk,
)
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.runs._journal import Journal

# views


def test_dice_are_uniform_repeatable_and_named(view_of):
    view = view_of([1] * 4000)
    dice = view.chances("a")
    assert np.array_equal(dice, view.chances("a"))
    assert abs(np.corrcoef(dice, view.chances("b"))[0, 1]) < 0.1
    assert abs(np.corrcoef(dice, view_of([1] * 4000, round=1).chances("a"))[0, 1]) < 0.1
    assert 0 < dice.min() < dice.max() < 1
    counts = np.histogram(dice, bins=10, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 40  # chi-square with 9 degrees: below 1e-5


def test_dice_belong_to_the_client_not_to_its_place(view_of, permuted):
    view, order = view_of([1, 2, 3]), np.array([2, 0, 1])
    assert np.array_equal(permuted(view, order).chances("a"), view.chances("a")[order])


# terms of reports


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan"), "half"])
def test_a_share_outside_zero_and_one_is_refused(share):
    with pytest.raises(InputError, match="report_share"):
        ReportTerms(share=share)


def test_raw_reports_take_no_share():
    assert ReportTerms(mode="raw", share=0.3).share == 0.0


def test_unknown_words_are_refused():
    with pytest.raises(InputError, match="Did you mean 'private'"):
        ReportTerms(mode="privat")
    with pytest.raises(InputError, match="statistic"):
        ReportTerms(statistic="gradient")


# drawing, ranking and filling


def test_the_first_draw_has_the_weights_as_probabilities(view_of):
    weights, hits = np.array([1.0, 2.0, 5.0]), np.zeros(3)
    for seed in range(4000):
        view = view_of([1, 1, 1], seed=seed)
        drawn = draw_without_replacement(view, np.arange(3), 1, weights=weights, purpose="x")
        hits[drawn] += 1
    assert ((hits - 500 * weights) ** 2 / (500 * weights)).sum() < 23  # chi2(2): below 1e-5


def test_largest_takes_the_largest_and_breaks_ties_by_dice(view_of):
    view = view_of([1] * 6)
    assert set(largest(view, np.arange(6), 2, scores=np.arange(6.0)).tolist()) == {4, 5}
    tied = {
        largest(view_of([1] * 6, seed=s), np.arange(6), 1, scores=np.ones(6)).item()
        for s in range(40)
    }
    assert len(tied) > 3


def test_a_whole_choice_is_kept(view_of):
    assert filled_cohort(view_of([1] * 5), np.array([3, 1])).tolist() == [3, 1]


def test_missing_places_go_to_other_candidates(view_of):
    view = view_of([1] * 5, draws_left=np.array([1, 1, 0, 1, 0]), cohort_size=3)
    cohort = filled_cohort(view, np.array([3]))
    assert sorted(cohort.tolist()) == [0, 1, 3]


def test_spare_draws_are_spread_although_one_client_is_public(view_of):
    """A public client has all draws of the training left, and is no more than one of them."""
    view = view_of([1] * 4, draws_left=np.array([5, 5, 1000, 5]), cohort_size=11)
    times = np.bincount(filled_cohort(view, np.array([0])), minlength=4)
    assert sorted(times.tolist()) == [2, 3, 3, 3]


def test_caps_that_cannot_hold_a_cohort_are_not_exceeded(view_of):
    view = view_of([1] * 2, draws_left=np.array([1, 1]), cohort_size=3)
    with pytest.raises(BudgetExceededError, match=r"2 draws left .* cohort of 3"):
        filled_cohort(view, np.array([], dtype=np.int64))


def test_shrinking_by_hand():
    # Equal noise 1, answers 0 and 4: m = 2, Q - 1 = 8 - 1, v = 7 / (2 - 1) = 7, factor 7/8.
    assert shrunk(np.array([0.0, 4.0]), np.ones(2)) == pytest.approx([0.25, 3.75])


def test_reports_that_tell_nothing_all_count_alike():
    assert shrunk(np.array([1.0, 1.1]), np.array([5.0, 9.0])).std() == 0


@settings(max_examples=60, deadline=None)
@given(
    left=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    cohort_size=st.integers(1, 8),
    seed=st.integers(0, 2**32),
    chosen=st.integers(0, 8),
)
def test_a_cohort_is_whole_and_within_the_caps(left, cohort_size, seed, chosen):
    caps = np.array(left)
    assume(caps.sum() >= cohort_size)
    view = RoundView(
        round=0,
        cohort_size=cohort_size,
        ids=tuple(f"c{k}" for k in range(caps.size)),
        sizes=np.ones(caps.size, dtype=np.int64),
        epsilon=np.ones(caps.size),
        public=np.zeros(caps.size, dtype=np.bool_),
        draws_left=caps,
        reports_left=caps,
        seed=seed,
    )
    wanted = view.candidates[:chosen]
    cohort = filled_cohort(view, wanted)
    assert cohort.size == cohort_size
    times = np.bincount(cohort, minlength=caps.size)
    assert (times <= caps).all()
    below = times < caps
    if below.any():  # nobody is heard more than once more often than one who could be heard more
        assert times.max() <= times[below].min() + 1
    assert set(wanted[:cohort_size].tolist()) <= set(cohort.tolist())


# cohorts of a rule


class Wild:
    """A rule that says what it is told to say."""

    name, statistic, mini_batch, watches_updates = "wild", "loss", False, False

    def __init__(self, asked, chosen):
        self.asked, self.chosen = asked, chosen

    def check(self, clients, cohort_size, public):
        pass

    def expected_reports(self, clients, rounds, draw_cap):
        return 1

    def ask(self, view):
        return self.asked

    def choose(self, view, answers):
        return self.chosen


def answer(clients):
    return {int(k): 0.0 for k in clients}


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [([8], []), ([-1], []), ([1, 1], []), ([0.5], []), ([[1]], []), ([], [9]), ([], [2, 2])],
)
def test_strangers_and_twins_are_refused(plan_of, asked, chosen):
    rule = Wild(asked, chosen)
    view = Journal(plan_of(rule)).view(0)
    with pytest.raises(InputError, match="wild"):
        rule_cohort(rule, view, answer)


def test_clients_at_their_caps_are_refused(plan_of):
    journal = Journal(plan_of(Wild([1], [1]), participation_cap=3))
    journal.count_reports(0, [1])
    with pytest.raises(InputError, match=r"wild.ask"):
        rule_cohort(Wild([1], [1]), journal.view(1), answer)
    journal = Journal(plan_of(Wild([], [1]), participation_cap=3))
    for t in range(3):
        journal.count(t, np.array([1, 2]))
    with pytest.raises(InputError, match=r"wild.choose"):
        rule_cohort(Wild([], [1]), journal.view(3), answer)


def test_a_rule_that_names_no_statistic_cannot_ask(plan_of):
    rule = Wild([1], [1])
    rule.statistic = None
    view = replace(Journal(plan_of(rule)).view(0), reports_left=np.ones(8, dtype=np.int64))
    with pytest.raises(InputError, match="names no statistic"):
        rule_cohort(rule, view, answer)


def test_too_many_are_cut_and_too_few_filled(plan_of):
    for chosen in ([1, 2, 3], [], [4]):
        rule = Wild([], chosen)
        cohort = rule_cohort(rule, Journal(plan_of(rule)).view(0), answer)
        assert cohort.size == 2
        assert set(chosen[:2]) <= set(cohort.tolist())


class Failing(Wild):
    """A rule that fails where it is told to."""

    def __init__(self, where):
        super().__init__([], [])
        self.where = where

    def check(self, clients, cohort_size, public):
        self._fail("check")

    def expected_reports(self, clients, rounds, draw_cap):
        self._fail("expected_reports")
        return 1

    def ask(self, view):
        self._fail("ask")
        return []

    def choose(self, view, answers):
        self._fail("choose")
        return []

    def _fail(self, here):
        if here == self.where:
            raise KeyError("oops")


@pytest.mark.parametrize("where", ["check", "expected_reports", "ask", "choose"])
def test_a_rule_of_ones_own_that_fails_is_named(plan_of, where):
    with pytest.raises(InputError, match=f"Failing failed in {where}: KeyError: 'oops'"):
        rule_cohort(rule := Failing(where), Journal(plan_of(rule)).view(0), answer)

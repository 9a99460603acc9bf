# SPDX-License-Identifier: Apache-2.0
"""Decisions: a rule cannot name whom it likes."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.adaptive.book import Book
from dpcohort.adaptive.decision import decide, round_view
from dpcohort.errors import InputError


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
    plan = plan_of(Wild(asked, chosen))
    view = round_view(plan, Book(plan), 0)
    with pytest.raises(InputError, match="wild"):
        decide(plan, view, answer)


def test_clients_at_their_caps_are_refused(plan_of):
    plan = plan_of(Wild([1], [1]), participation_cap=3)
    book = Book(plan)
    book.count_reports(0, [1])
    with pytest.raises(InputError, match=r"wild.ask"):
        decide(plan, round_view(plan, book, 1), answer)
    plan = plan_of(Wild([], [1]), participation_cap=3)
    book = Book(plan)
    for t in range(3):
        book.choose(t, np.array([1, 2]))
    with pytest.raises(InputError, match=r"wild.choose"):
        decide(plan, round_view(plan, book, 3), answer)


def test_a_rule_that_names_no_statistic_cannot_ask(plan_of):
    rule = Wild([1], [1])
    rule.statistic = None
    plan = plan_of(rule)
    book = Book(plan)
    view = round_view(plan, book, 0)
    with pytest.raises(InputError):
        decide(plan, view, answer)


def test_too_many_are_cut_and_too_few_filled(plan_of):
    for chosen in ([1, 2, 3], [], [4]):
        plan = plan_of(Wild([], chosen))
        cohort = decide(plan, round_view(plan, Book(plan), 0), answer)
        assert cohort.size == 2
        assert set(chosen[:2]) <= set(cohort.tolist())


def test_a_view_cannot_be_written_to(plan_of):
    plan = plan_of()
    view = round_view(plan, Book(plan), 0)
    columns = (view.sizes, view.epsilon, view.public, view.draws_left, view.reports_left)
    for column in (*columns, view.report_stds):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


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
        decide(plan := plan_of(Failing(where)), round_view(plan, Book(plan), 0), answer)

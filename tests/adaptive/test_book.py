# SPDX-License-Identifier: Apache-2.0
"""The book: counted before, never beyond a cap, the same when played back."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.adaptive.book import Book
from dpcohort.errors import BudgetExceededError, VerificationError


def test_the_listener_hears_an_entry_before_it_counts(plan_of):
    heard = []

    def listener(entry):
        heard.append((entry, book.reports_made.sum(), book.draws.sum()))

    book = Book(plan_of(), listener)
    book.count_reports(0, [1, 2])
    book.keep_answers(0, {1: 0.5, 2: 0.25})
    book.choose(0, np.array([1, 2]))
    assert [counts for _, *counts in heard] == [[0, 0], [2, 0], [2, 0]]
    assert heard[1][0] == {"round": 0, "answers": {"client-1": 0.5, "client-2": 0.25}}
    assert book.draws.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]


def test_a_listener_that_refuses_stops_the_count(plan_of):
    def full_disk(entry):
        raise OSError("full")

    book = Book(plan_of(), full_disk)
    with pytest.raises(OSError, match="full"):
        book.count_reports(0, [1])
    assert book.reports_made.sum() == 0


def test_caps_cannot_be_exceeded(plan_of):
    book = Book(plan_of(participation_cap=3, report_cap=1))
    book.count_reports(0, [4])
    with pytest.raises(BudgetExceededError, match="'client-4' has made 1 of 1 reports"):
        book.count_reports(1, [3, 4])
    assert book.reports_made[3] == 0
    with pytest.raises(BudgetExceededError):
        book.count_reports(1, [3, 3])
    book.choose(0, np.array([4, 4]))
    with pytest.raises(BudgetExceededError, match="'client-4' was drawn 2 of 3 times"):
        book.choose(1, np.array([4, 4]))
    with pytest.raises(BudgetExceededError, match="chosen already"):
        book.choose(0, np.array([1, 2]))


def test_played_back_it_is_the_same(plan_of):
    entries = []
    book = Book(plan_of(), entries.append)
    book.count_reports(0, [1, 2, 3])
    book.keep_answers(0, {1: 0.5, 2: 0.25, 3: 0.1})
    book.choose(0, np.array([1, 2]))
    book.count_reports(1, [1])
    again = Book(plan_of())
    again.replay(entries)
    assert np.array_equal(again.draws, book.draws)
    assert np.array_equal(again.reports_made, book.reports_made)
    assert again.reports_before(1) == book.reports_before(1)
    assert again.counted(1) == {1}
    assert again.answers(1) == {}
    assert [c.tolist() for c in again.cohorts_before(2)] == [[1, 2]]


@pytest.mark.parametrize(
    "entry",
    [
        {"round": 0, "reports": ["nobody"]},
        {"round": "x", "reports": []},
        {"round": 0},
        {"round": 0, "cohort": ["client-0"] * 9},
    ],
    ids=["stranger", "no round", "nothing", "beyond"],
)
def test_a_wrong_entry_is_refused(plan_of, entry):
    with pytest.raises(VerificationError):
        Book(plan_of()).replay([entry])


def test_raw_answers_are_never_written(plan_of):
    entries = []
    book = Book(plan_of(reports="raw"), entries.append)
    book.count_reports(0, [1])
    book.keep_answers(0, {1: 0.5})
    assert entries == [{"round": 0, "reports": ["client-1"]}]
    assert book.answers(0) == {1: 0.5}

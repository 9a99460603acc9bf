# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import pytest

from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger import LifetimeCap
from dpcohort.deploy.ledger._clock import ClockReading
from dpcohort.deploy.ledger._state import LedgerState
from dpcohort.deploy.ledger._store import Entry
from dpcohort.errors import BudgetExceededError, InputError, VerificationError

DRAW = {"dataset": "ward", "run": "spring", "round": 0, "draw": 0}


class Book:
    """Rows with right hashes, whatever they say."""

    def __init__(self):
        self.state = LedgerState()

    def row(self, kind, body, **where):
        last = self.state.head if self.state.hashes else None
        return Entry.following(last, kind, {**ClockReading(0, "a", 0).to_dict(), **body}, **where)

    def add(self, kind, body, **where):
        self.state.replay(self.row(kind, body, **where))


@pytest.fixture
def book(terms):
    made = Book()
    made.add("opened", {"ledger": "a" * 32})
    made.add("dataset", {"cap": LifetimeCap(epsilon=2, delta=1e-5).to_dict()}, dataset="ward")
    made.add("accept", {"terms": terms.to_dict()}, dataset="ward", run="spring")
    return made


@pytest.mark.parametrize(
    ("kind", "where", "error"),
    [
        ("opened", {}, InputError),
        ("dataset", {"dataset": "ward"}, InputError),
        ("accept", {"dataset": "ward", "run": "spring"}, InputError),
        ("accept", {"dataset": "home", "run": "spring"}, InputError),
        ("reserve", {**DRAW, "run": "autumn"}, InputError),
        ("reserve", {**DRAW, "dataset": "home"}, InputError),
        ("reserve", {**DRAW, "round": 60}, InputError),
        ("reserve", {**DRAW, "round": None}, InputError),
        ("release", DRAW, BudgetExceededError),
        ("unmask", DRAW, BudgetExceededError),
        ("discard", {"dataset": "ward", "run": "autumn"}, InputError),
        ("refund", DRAW, InputError),
    ],
)
def test_rows_against_the_rules(book, terms, step, kind, where, error):
    """With right hashes: only the rules can catch them, on writing and on reading alike."""
    body = {
        "ledger": "b" * 32,
        "cap": LifetimeCap(epsilon=9, delta=1e-5).to_dict(),
        "terms": terms.to_dict(),
        "event": step.to_dict(),
        "clip": 1.0,
        "sha256": "f" * 64,
    }
    row = book.row(kind, body, **where)
    with pytest.raises(error):
        book.state.check(row)
    with pytest.raises(VerificationError, match="entry 4 breaks a rule"):
        book.state.replay(row)
    assert book.state.head[0] == 3


def test_a_draw_is_reserved_and_released_once(book, step):
    reserve = {"event": step.to_dict(), "clip": 1.0}
    book.add("reserve", reserve, **DRAW)
    with pytest.raises(BudgetExceededError, match="stays counted"):
        book.state.check(book.row("reserve", reserve, **DRAW))
    book.add("release", {"sha256": "f" * 64}, **DRAW)
    with pytest.raises(BudgetExceededError, match="send that again"):
        book.state.check(book.row("reserve", reserve, **DRAW))
    with pytest.raises(BudgetExceededError, match="only one"):
        book.state.check(book.row("release", {"sha256": "e" * 64}, **DRAW))


def test_a_run_ends_with_its_draws(book, step, terms):
    reserve = {"event": step.to_dict(), "clip": 1.0}
    few = {"terms": replace(terms, draws=2).to_dict()}
    book.add("accept", few, dataset="ward", run="short")
    for draw in range(2):
        book.add("reserve", reserve, dataset="ward", run="short", round=0, draw=draw)
    with pytest.raises(BudgetExceededError, match="all 2 draws"):
        book.state.check(book.row("reserve", reserve, dataset="ward", run="short", round=1, draw=0))


def test_the_same_data_under_two_names(book):
    cap = LifetimeCap(epsilon=2, delta=1e-5, fingerprint="c" * 64).to_dict()
    book.add("dataset", {"cap": cap}, dataset="one")
    with pytest.raises(InputError, match="registered already, as 'one'"):
        book.state.check(book.row("dataset", {"cap": cap}, dataset="two"))


@pytest.mark.parametrize("body", [{}, {"terms": 3}, {"terms": {"epsilon": 1}}])
def test_a_malformed_body_is_a_broken_rule(book, body):
    with pytest.raises(VerificationError, match="entry 4"):
        book.add("accept", body, dataset="ward", run="next")


def test_gaps_and_edits(book, step):
    row = book.row("reserve", {"event": step.to_dict(), "clip": 1.0}, **DRAW)
    with pytest.raises(VerificationError, match="entry 4 is missing"):
        book.state.replay(dataclasses.replace(row, seq=5))
    with pytest.raises(VerificationError, match="was changed"):
        book.state.replay(dataclasses.replace(row, draw=1))
    stray = Entry.following((3, "e" * 64), "reserve", row.content(), **DRAW)
    assert stray.is_whole()  # its own hash is right, and it follows another row
    with pytest.raises(VerificationError, match="was changed"):
        book.state.replay(stray)
    with pytest.raises(VerificationError, match="'opened' in the first row"):
        LedgerState().replay(Entry.following(None, "dataset", {}, dataset="d"))

# SPDX-License-Identifier: Apache-2.0
"""Counting and repeating the choices of an adaptive ledger; whole runs: test_adaptive_runs."""

from __future__ import annotations

import pytest

from dpcohort.runs.adaptive_verification import check_adaptive_entries

from .conftest import adaptive_plan


def check(plan, *entries, seeded=True):
    return check_adaptive_entries(plan, list(entries), name="ledger.jsonl", seeded=seeded)


def test_nothing_is_wrong_with_nothing():
    count = check(adaptive_plan())
    assert not count.problems
    assert count.draws.sum() == 0


@pytest.mark.parametrize(
    "entry",
    [
        {"round": 0},
        {"round": 0, "reports": "client-1"},
        {"round": 0, "reports": ["nobody"]},
        {"round": 0, "reports": ["client-1"], "secret": 1},
        {"round": 99, "reports": ["client-1"]},
        {"round": None, "cohort": []},
        {"round": 0, "cohort": ["client-1"]},
    ],
    ids=["empty", "word", "stranger", "more", "late", "no round", "short"],
)
def test_a_line_that_no_run_writes_is_found(entry):
    assert check(adaptive_plan(), entry).problems


def test_draws_are_counted_even_when_they_are_wrong():
    plan = adaptive_plan()
    twice = {"round": 0, "cohort": ["client-1"] * 4}
    count = check(plan, twice, twice, twice)
    assert count.draws[1] == 12
    words = " ".join(text for _, text in count.problems)
    assert "counted twice" in words
    assert "the cap is 6" in words


def test_a_cohort_that_the_rule_does_not_come_to_is_found():
    plan = adaptive_plan("donated")
    count = check(plan, {"round": 0, "cohort": [f"client-{k}" for k in range(4)]})
    assert any("another cohort" in text for _, text in count.problems)


@pytest.mark.parametrize(
    ("rule", "options", "words"),
    [("clustered", {}, "looks at updates"), ("rpow-d", {"reports": "raw"}, "not written down")],
)
def test_what_cannot_be_repeated_is_a_note(rule, options, words):
    count = check(adaptive_plan(rule, **options))
    assert not count.problems
    assert words in count.notes[0]

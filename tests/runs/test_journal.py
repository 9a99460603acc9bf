# SPDX-License-Identifier: Apache-2.0
"""The journal: on disk before it counts, never beyond the plan, one process's, read back alike."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.errors import BudgetExceededError, DataMissingError, InputError, VerificationError
from dpcohort.runs._folder import append_line, read_log
from dpcohort.runs._journal import Journal, journal_header, planned_draws

from .conftest import adaptive_plan, small_plan

REPORTS = {"round": 0, "reports": ["client-1", "client-2"]}
COHORT = {"round": 0, "cohort": ["client-1", "client-2", "client-2", "client-7"]}
BOTH = pytest.mark.parametrize("make", [small_plan, adaptive_plan], ids=["fixed", "adaptive"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def cohort_of(plan, round):
    """The draws that a plan allows in a round: those of its schedule, or any within the caps."""
    return np.array([0, 1, 2, 7]) if plan.participation.deciding else plan.schedule.cohorts[round]


def count(journal, plan, *rounds):
    for round in rounds:
        journal.count(round, cohort_of(plan, round))


def replayed(plan, *entries):
    journal = Journal(plan)
    for entry in entries:
        journal.replay(entry)
    return journal


# the file


@BOTH
def test_a_count_is_on_disk_when_it_returns(path, make):
    plan = make()
    journal = Journal(plan, path)
    for t in (0, 1):
        count(journal, plan, t)
        assert [line.get("round") for line in read_log(path)] == [None, *range(t + 1)]
    journal.close()
    journal.close()
    for again in (Journal.read(plan, path), taken_over := Journal(plan, path)):
        assert again.rounds == {0, 1}
        assert np.array_equal(again.draws, journal.draws)
        assert again.cohort(1).tolist() == cohort_of(plan, 1).tolist()
        assert again.cohort(3) is None
    taken_over.close()
    assert len(read_log(path)) == 3  # the first line is written once


@BOTH
def test_an_entry_counts_after_it_is_on_disk(path, make, monkeypatch):
    plan, seen = make(), []
    journal = Journal(plan, path)

    def watched(file, entry):
        seen.append((journal.draws.sum(), journal.reports.sum()))
        append_line(file, entry)

    monkeypatch.setattr("dpcohort.runs._journal.append_line", watched)
    count(journal, plan, 0)
    if plan.participation.deciding:
        journal.count_reports(1, [1, 2])
        journal.keep_answers(1, {1: 0.5, 2: 0.25})
    journal.close()
    assert seen == [(0, 0), (4, 0), (4, 2)][: len(seen)]
    assert len(seen) == len(read_log(path)) - 1


@BOTH
def test_what_could_not_be_written_is_not_counted(path, make):
    plan = make()
    journal = Journal(plan, path)
    count(journal, plan, 0)
    before = journal.draws
    journal.close()  # every further line fails
    with pytest.raises(InputError, match="could not be written"):
        count(journal, plan, 1)
    assert journal.rounds == {0}
    assert np.array_equal(journal.draws, before)
    if plan.participation.deciding:
        with pytest.raises(InputError, match="could not be written"):
            journal.count_reports(1, [1])
        assert not journal.reports.any()
        assert journal.asked(1) == set()


@BOTH
def test_it_is_open_in_one_process_only_and_refusing_lets_go_of_it(path, make):
    plan = make()
    journal = Journal(plan, path)
    with pytest.raises(InputError, match="is training in this folder"):
        Journal(plan, path)
    count(journal, plan, 0)
    journal.close()
    with pytest.raises(VerificationError, match="another plan"):
        Journal(make(seed=4), path)
    again = Journal(plan, path)  # the refused opening left no lock behind
    assert again.rounds == {0}
    again.close()


@BOTH
def test_reading_needs_a_file_with_a_first_line(path, make):
    with pytest.raises(DataMissingError, match="cannot be read"):
        Journal.read(make(), path)
    for content in ("", '{"format": "cut sho'):
        path.write_text(content)
        with pytest.raises(VerificationError, match="no first line"):
            Journal.read(make(), path)


@BOTH
def test_the_journal_of_another_plan_is_named(path, make):
    plan, other = make(), make(seed=4)
    Journal(plan, path).close()
    for opening in (Journal, Journal.read):
        with pytest.raises(VerificationError) as caught:
            opening(other, path)
        assert str(caught.value) == (
            f"{path} is the ledger of another plan ({plan.sha256[:16]}... instead of "
            f"{other.sha256[:16]}...). Resume with the plan of the run."
        )


@BOTH
@pytest.mark.parametrize("key", ["format", "schema", "local_steps", "sampler", "neighbours"])
def test_the_whole_first_line_is_compared(path, make, key):
    plan = make()
    path.write_text(json.dumps({**journal_header(plan), key: "another"}) + "\n")
    with pytest.raises(VerificationError, match="another plan"):
        Journal(plan, path)


def test_lines_are_as_they_always_were(plan, tmp_path):
    """Ledgers written by other versions are read: neither keys nor their order change."""
    journal = Journal(plan, tmp_path / "fixed.jsonl")
    count(journal, plan, 1)
    journal.close()
    first, line = (tmp_path / "fixed.jsonl").read_text().splitlines()
    assert first == (
        '{"format": "dpcohort ledger", "schema": 1, "plan": "' + plan.sha256 + '", '
        '"local_steps": 1, "sampler": "poisson", "neighbours": "zero-out"}'
    )
    assert line == json.dumps({"round": 1, "draws": planned_draws(plan, 1)})
    adaptive = adaptive_plan()
    journal = Journal(adaptive, tmp_path / "adaptive.jsonl")
    journal.count_reports(0, [2, 1])
    journal.keep_answers(0, {2: 0.25, 1: 0.5})
    journal.count(0, np.array([1, 2, 2, 7]))
    journal.close()
    assert (tmp_path / "adaptive.jsonl").read_text() == (
        '{"format": "dpcohort adaptive ledger", "schema": 1, "plan": "' + adaptive.sha256 + '", '
        '"local_steps": 1, "sampler": "poisson", "neighbours": "zero-out", "reports": "private"}\n'
        '{"round": 0, "reports": ["client-2", "client-1"]}\n'
        '{"round": 0, "answers": {"client-1": 0.5, "client-2": 0.25}}\n'
        '{"round": 0, "cohort": ["client-1", "client-2", "client-2", "client-7"]}\n'
    )


# draws


def test_it_counts_what_the_schedule_says_and_nothing_twice(plan, path):
    journal = Journal(plan, path)
    count(journal, plan, *range(plan.training.rounds))
    assert np.array_equal(journal.draws, plan.counts)
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError, match="twice"):
        count(journal, plan, 2)
    journal.close()
    assert path.read_bytes() == before
    assert sum(read_log(path)[3]["draws"].values()) == 4


def test_another_cohort_than_the_plans_is_refused(plan, path):
    journal = Journal(plan, path)
    planned = plan.schedule.cohorts
    for cohort in (planned[1], planned[0][::-1], planned[0][:3], np.append(planned[0], 0)):
        assert not np.array_equal(cohort, planned[0])
        with pytest.raises(BudgetExceededError, match="round 0 of the plan has another cohort"):
            journal.count(0, cohort)
    journal.close()
    assert journal.is_empty
    assert len(read_log(path)) == 1


def test_a_client_drawn_twice_in_a_round_is_counted_twice():
    plan = small_plan(cohort_size=12)  # more draws in a round than there are clients
    journal = Journal(plan)
    count(journal, plan, 0)
    assert max(planned_draws(plan, 0).values()) > 1
    assert journal.draws.tolist() == [planned_draws(plan, 0).get(k, 0) for k in plan.population.ids]


@BOTH
def test_what_is_given_is_a_copy(make):
    journal = Journal(make())
    journal.draws[:] = 9
    journal.reports[:] = 9
    journal.asked(0).add(1)
    journal.answers(0)[1] = 0.5
    assert not journal.draws.any()
    assert not journal.reports.any()
    assert journal.asked(0) == set()
    assert journal.answers(0) == {}


def test_caps_cannot_be_exceeded(path):
    plan = adaptive_plan(participation_cap=5, report_cap=1)
    journal = Journal(plan, path)
    journal.count_reports(0, [4])
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError, match="'client-4' has made 1 of 1 reports"):
        journal.count_reports(1, [3, 4])
    with pytest.raises(BudgetExceededError):
        journal.count_reports(1, [3, 3])
    assert journal.reports[3] == 0
    assert path.read_bytes() == before
    journal.count(0, np.array([4, 4, 4, 4]))
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError, match="'client-4' was drawn 4 of 5 times; 2 more"):
        journal.count(1, np.array([4, 4, 1, 2]))
    with pytest.raises(BudgetExceededError, match="twice"):
        journal.count(0, np.array([1, 2, 3, 5]))
    assert path.read_bytes() == before
    journal.count(1, np.array([4, 1, 2, 3]))
    assert journal.draws[4] == 5
    journal.close()


# reports and answers


def test_reports_answers_and_cohorts_read_back(path):
    plan = adaptive_plan()
    journal = Journal(plan, path)
    journal.count_reports(0, [1, 2, 3])
    journal.keep_answers(0, {1: 0.5, 2: 0.25, 3: 0.1})
    journal.count(0, np.array([1, 2, 2, 7]))
    journal.count_reports(1, [1])
    journal.close()
    again = Journal.read(plan, path)
    assert again.draws.tolist() == journal.draws.tolist() == [0, 1, 2, 0, 0, 0, 0, 1]
    assert again.reports.tolist() == journal.reports.tolist() == [0, 2, 1, 1, 0, 0, 0, 0]
    assert again.view(1).reports == journal.view(1).reports
    assert (again.asked(1), again.answers(1)) == ({1}, {})
    assert [cohort.tolist() for cohort in again.view(2).cohorts] == [[1, 2, 2, 7]]


def test_raw_answers_are_never_written(path):
    journal = Journal(adaptive_plan(reports="raw"), path)
    journal.count_reports(0, [1])
    journal.keep_answers(0, {1: 0.5})
    journal.close()
    assert read_log(path)[1:] == [{"round": 0, "reports": ["client-1"]}]
    assert journal.answers(0) == {1: 0.5}


def test_a_view_does_not_depend_on_what_was_counted_since():
    """A run that goes on, or is verified, sees what was seen: the round itself is not in it."""
    plan = adaptive_plan()
    entries = [
        REPORTS,
        {"round": 0, "answers": {"client-1": 0.5, "client-2": 0.25}},
        COHORT,
        {"round": 1, "reports": ["client-3"]},
        {"round": 1, "answers": {"client-3": 0.1}},
        {"round": 1, "cohort": ["client-3", "client-4", "client-5", "client-6"]},
    ]
    whole = replayed(plan, *entries)
    for round, known in ((0, 0), (1, 3), (2, 6)):
        then, now = replayed(plan, *entries[:known]).view(round), whole.view(round)
        assert np.array_equal(then.draws_left, now.draws_left)
        assert np.array_equal(then.reports_left, now.reports_left)
        assert then.reports == now.reports
        assert [c.tolist() for c in then.cohorts] == [c.tolist() for c in now.cohorts]


def test_an_unanswered_report_is_spent_unless_it_repeats():
    plan = adaptive_plan(report_cap=3)
    journal = replayed(plan, REPORTS, {"round": 0, "answers": {"client-2": 0.25}})
    assert journal.view(0, repeats=True).reports_left[[1, 2]].tolist() == [3, 3]
    assert journal.view(0, repeats=False).reports_left[[1, 2]].tolist() == [2, 3]


# lines that were written before


@pytest.mark.parametrize(
    "entry",
    [
        {"round": 0, "draws": {}},
        {"round": 99, "draws": {"client-0": 1}},
        {"round": -1, "draws": {}},
        {"round": "0", "draws": {}},
        {"round": True, "draws": {}},
        {"draws": {}},
        {"round": 0, "cohort": ["client-0"]},
        "again",
        "last round counted from the end",
        "round 0 as false",
    ],
)
def test_lines_that_are_not_the_plans_are_refused(plan, path, entry):
    journal = Journal(plan, path)
    count(journal, plan, 1)
    journal.close()
    rounds = {"again": 1, "last round counted from the end": -1, "round 0 as false": False}
    extra = entry
    if isinstance(entry, str):
        extra = {"round": rounds[entry], "draws": planned_draws(plan, rounds[entry])}
    with open(path, "a") as file:
        file.write(json.dumps(extra) + "\n")
    for opening in (Journal, Journal.read):
        with pytest.raises(VerificationError, match=r"ledger\.jsonl, line 3: .*dpcohort verify"):
            opening(plan, path)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"round": 0, "reports": ["nobody"]}, "nobody"),
        ({"round": 1, "cohort": ["nobody"]}, "nobody"),
        ({"round": "x", "reports": []}, "not a round of the plan"),
        ({"round": 99, "reports": ["client-1"]}, "not a round of the plan"),
        ({"round": 0}, "cohort"),
        ({"round": 1, "draws": {"client-1": 1}}, "cohort"),
        ({"round": 1, "cohort": ["client-1"] * 9}, "'client-1' is beyond its cap"),
        ({"round": 1, "reports": ["client-1"] * 99}, "'client-1' is beyond its cap"),
        ({"round": 0, "cohort": ["client-3"]}, "the round is counted twice"),  # within every cap
    ],
)
def test_a_line_of_an_adaptive_plan_that_no_run_writes_is_refused(path, entry, words):
    plan = adaptive_plan()
    lines = [journal_header(plan), COHORT, entry]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(VerificationError, match=f"line 3: .*{words}"):
        Journal.read(plan, path)

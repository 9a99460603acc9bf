# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.errors import BudgetExceededError, InputError, VerificationError
from dpcohort.runs.append_log import read_log
from dpcohort.runs.ledger import Ledger, planned_draws
from dpcohort.runs.verification import verify_run

from .conftest import small_plan


def test_counts_what_the_schedule_says_and_nothing_twice(plan, tmp_path):
    ledger = Ledger(plan, tmp_path / "ledger.jsonl")
    for t in range(plan.training.rounds):
        ledger.count(t)
    assert np.array_equal(ledger.draws, plan.schedule.counts)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(BudgetExceededError, match="twice"):
        ledger.count(2)
    ledger.close()
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    assert sum(read_log(tmp_path / "ledger.jsonl")[3]["draws"].values()) == 4


def test_a_client_drawn_twice_in_a_round_is_counted_twice():
    plan = small_plan(cohort_size=12)  # more draws in a round than there are clients
    ledger = Ledger(plan)
    ledger.count(0)
    assert max(planned_draws(plan, 0).values()) > 1
    assert ledger.draws.tolist() == [planned_draws(plan, 0).get(k, 0) for k in plan.population.ids]


def test_goes_on_where_it_stopped(plan, tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(plan, path)
    first.count(0)
    first.count(1)
    first.close()
    with open(path, "ab") as file:
        file.write(b'{"round": 2, "dr')  # a crash while writing
    again = Ledger(plan, path)
    assert again.rounds == {0, 1}
    again.count(2)
    again.close()
    assert Ledger.read(plan, path).rounds == {0, 1, 2}


def test_the_ledger_of_another_plan_is_refused(plan, tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(plan, path).close()
    with pytest.raises(VerificationError, match="another plan"):
        Ledger(small_plan(seed=4), path)


@pytest.mark.parametrize(
    "entry",
    [
        {"round": 0, "draws": {}},
        {"round": 99, "draws": {"client-0": 1}},
        {"round": -1, "draws": {}},
        {"round": "0", "draws": {}},
        {"round": True, "draws": {}},
        {"draws": {}},
        "again",
        "last round counted from the end",
        "round 0 as false",
    ],
)
def test_lines_that_are_not_the_plans_are_refused(plan, tmp_path, entry):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(plan, path)
    ledger.count(1)
    ledger.close()
    rounds = {"again": 1, "last round counted from the end": -1, "round 0 as false": False}
    extra = entry
    if isinstance(entry, str):
        extra = {"round": rounds[entry], "draws": planned_draws(plan, rounds[entry])}
    with open(path, "a") as file:
        file.write(json.dumps(extra) + "\n")
    with pytest.raises(VerificationError, match="line 3"):
        Ledger.read(plan, path)


def test_an_empty_file_is_not_a_ledger(plan, tmp_path):
    (tmp_path / "ledger.jsonl").touch()
    with pytest.raises(VerificationError, match="first line"):
        Ledger.read(plan, tmp_path / "ledger.jsonl")


def test_two_processes_cannot_count_in_one_ledger(plan, tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(plan, path)
    with pytest.raises(InputError, match="another process"):
        Ledger(plan, path)
    ledger.count(0)
    ledger.close()
    assert Ledger(plan, path).rounds == {0}


def test_the_line_of_a_round_is_as_it_always_was(plan, tmp_path):
    """Ledgers written by other versions are read: neither keys nor their order change."""
    ledger = Ledger(plan, tmp_path / "ledger.jsonl")
    ledger.count(1)
    ledger.close()
    first, line = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert first == (
        '{"format": "dpcohort ledger", "schema": 1, "plan": "' + plan.sha256 + '", '
        '"local_steps": 1, "sampler": "poisson", "neighbours": "zero-out"}'
    )
    assert line == json.dumps({"round": 1, "draws": planned_draws(plan, 1)})


def test_a_round_that_could_not_be_written_is_not_counted(plan, tmp_path):
    ledger = Ledger(plan, tmp_path / "ledger.jsonl")
    ledger.count(0)
    before = ledger.draws
    ledger.close()  # every further line fails
    with pytest.raises(InputError, match="could not be written"):
        ledger.count(1)
    assert ledger.rounds == {0}
    assert np.array_equal(ledger.draws, before)


def test_what_is_read_cannot_be_counted_in(plan, tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(plan, path).close()
    before = path.read_bytes()
    Ledger.read(plan, path).count(0)
    assert path.read_bytes() == before


def test_draws_are_a_copy(plan):
    ledger = Ledger(plan)
    ledger.draws[:] = 9
    assert not ledger.draws.any()


def test_a_round_that_is_no_number_is_found_by_verify(finished):
    path = finished / "ledger.jsonl"
    path.write_text(path.read_text().replace('{"round": 1,', '{"round": true,'))
    found = [finding.message for finding in verify_run(finished, method="pld").findings]
    assert "line 3 is not a count of a round." in found

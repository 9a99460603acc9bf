# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.errors import BudgetExceededError, InputError, VerificationError
from dpcohort.runs.append_log import read_log
from dpcohort.runs.ledger import Ledger, planned_draws

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
        {"round": "0", "draws": {}},
        {"draws": {}},
        "again",
    ],
)
def test_lines_that_are_not_the_plans_are_refused(plan, tmp_path, entry):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(plan, path)
    ledger.count(1)
    ledger.close()
    extra = {"round": 1, "draws": planned_draws(plan, 1)} if entry == "again" else entry
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

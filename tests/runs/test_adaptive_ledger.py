# SPDX-License-Identifier: Apache-2.0
"""The ledger of an adaptive run."""

from __future__ import annotations

import pytest

from dpcohort.errors import BudgetExceededError, InputError, VerificationError
from dpcohort.runs.adaptive_ledger import AdaptiveLedger, open_ledger, read_ledger
from dpcohort.runs.ledger import Ledger

from .conftest import adaptive_plan, small_plan

REPORTS = {"round": 0, "reports": ["client-1", "client-2"]}
COHORT = {"round": 0, "cohort": ["client-1", "client-2", "client-2", "client-7"]}


def test_entries_are_on_disk_and_read_back(tmp_path):
    plan = adaptive_plan()
    ledger = AdaptiveLedger(plan, tmp_path / "ledger.jsonl")
    for entry in (REPORTS, COHORT):
        ledger.append(entry)
    again = AdaptiveLedger.read(plan, tmp_path / "ledger.jsonl")
    ledger.close()
    assert again.draws.tolist() == [0, 1, 2, 0, 0, 0, 0, 1]
    assert again.reports.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    assert again.rounds == {0}
    assert again.cohort(0).tolist() == [1, 2, 2, 7]
    with pytest.raises(VerificationError, match="round 3"):
        again.cohort(3)


def test_a_round_is_counted_by_its_cohort_only():
    with pytest.raises(BudgetExceededError, match="when its cohort is chosen"):
        AdaptiveLedger(adaptive_plan()).count(0)


def test_another_plan_is_refused(tmp_path):
    AdaptiveLedger(adaptive_plan(), tmp_path / "ledger.jsonl").close()
    with pytest.raises(VerificationError, match="another plan"):
        AdaptiveLedger(adaptive_plan(seed=4), tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("bad", [COHORT, {"round": 1, "cohort": ["nobody"]}], ids=["twice", "who"])
def test_a_wrong_line_is_refused(tmp_path, bad):
    plan = adaptive_plan()
    ledger = AdaptiveLedger(plan, tmp_path / "ledger.jsonl")
    ledger.append(COHORT)
    ledger._log.append(bad)
    ledger.close()
    with pytest.raises(VerificationError, match="line 3"):
        AdaptiveLedger.read(plan, tmp_path / "ledger.jsonl")


def test_a_plan_gets_the_ledger_of_its_kind(tmp_path):
    assert isinstance(open_ledger(small_plan()), Ledger)
    assert isinstance(open_ledger(adaptive_plan()), AdaptiveLedger)
    open_ledger(small_plan(), tmp_path / "ledger.jsonl").close()
    assert isinstance(read_ledger(small_plan(), tmp_path / "ledger.jsonl"), Ledger)


def test_an_empty_file_is_no_ledger(tmp_path):
    (tmp_path / "ledger.jsonl").write_text("")
    with pytest.raises(VerificationError, match="no first line"):
        read_ledger(adaptive_plan(), tmp_path / "ledger.jsonl")


def test_the_first_line_is_as_it_always_was(tmp_path):
    plan = adaptive_plan()
    AdaptiveLedger(plan, tmp_path / "ledger.jsonl").close()
    assert (tmp_path / "ledger.jsonl").read_text() == (
        '{"format": "dpcohort adaptive ledger", "schema": 1, "plan": "' + plan.sha256 + '", '
        '"local_steps": 1, "sampler": "poisson", "neighbours": "zero-out", "reports": "private"}\n'
    )


def test_a_second_cohort_of_a_round_is_told_as_that(tmp_path):
    plan = adaptive_plan()
    ledger = AdaptiveLedger(plan, tmp_path / "ledger.jsonl")
    ledger.append({"round": 0, "cohort": ["client-1"]})
    ledger._log.append({"round": 0, "cohort": ["client-2"]})  # within every cap
    ledger.close()
    with pytest.raises(VerificationError, match="line 3: the round is counted twice"):
        AdaptiveLedger.read(plan, tmp_path / "ledger.jsonl")


def test_an_entry_that_could_not_be_written_is_not_counted(tmp_path):
    ledger = AdaptiveLedger(adaptive_plan(), tmp_path / "ledger.jsonl")
    ledger.close()  # every further line fails
    for entry in (REPORTS, COHORT):
        with pytest.raises(InputError, match="could not be written"):
            ledger.append(entry)
    assert not ledger.draws.any()
    assert not ledger.reports.any()
    assert ledger.entries == []

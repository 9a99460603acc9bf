# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort import runs
from dpcohort.runs._training import train_job
from dpcohort_lab.recipes.execution import measured, prepare


@pytest.fixture
def trained(recipe):
    (work,) = prepare([(recipe.cells[0], 0)], device="cpu")
    return work, train_job(work[2]), 1.0


def test_receipts_are_checked_once_for_runs_that_spent_the_same(trained, monkeypatch):
    known = {}
    found = measured(*trained, known)
    assert found.promises_hold
    assert found.clients_drawn == len(trained[1].receipts())
    assert len(known) == 1
    monkeypatch.setattr(runs, "make_receipts", lambda *_, **__: 1 / 0)
    assert measured(*trained, known) == found


def test_without_receipts_no_promise_is_said_to_hold(trained):
    assert not measured(*trained, None).promises_hold


def test_a_broken_receipt_shows(trained, monkeypatch):
    broken = [type("R", (), {"holds": True})(), type("R", (), {"holds": False})()]
    monkeypatch.setattr(runs, "make_receipts", lambda *_, **__: broken)
    assert not measured(*trained, {}).promises_hold

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dpcohort.lab.recipes.outcome import outcome_of_run
from dpcohort.runs import receipts
from dpcohort.runs.configured import configured_job
from dpcohort.runs.training import train_job


def test_receipts_are_checked_once_for_runs_that_spent_the_same(recipe, monkeypatch):
    run = train_job(configured_job(recipe.cells[0].seeded(0), device="cpu"))
    known = {}
    found = outcome_of_run(run, known)
    assert found.promises_hold
    assert found.clients_drawn == len(run.receipts())
    assert len(known) == 1
    monkeypatch.setattr(receipts, "make_receipts", lambda *_, **__: 1 / 0)
    assert outcome_of_run(run, known) == found


def test_without_receipts_no_promise_is_said_to_hold(recipe):
    run = train_job(configured_job(recipe.cells[0].seeded(0), device="cpu"))
    assert not outcome_of_run(run, None).promises_hold


def test_a_broken_receipt_shows(recipe, monkeypatch):
    run = train_job(configured_job(recipe.cells[0].seeded(0), device="cpu"))
    broken = [type("R", (), {"holds": True})(), type("R", (), {"holds": False})()]
    monkeypatch.setattr(receipts, "make_receipts", lambda *_, **__: broken)
    assert not outcome_of_run(run, {}).promises_hold

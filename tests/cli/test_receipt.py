# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.runs import train


@pytest.fixture
def run(tmp_path):
    clients = Population.from_arrays(
        ids=["[red]a[/red]", "b"], sizes=[600, 600], epsilon=[0.5, 5.0], delta=1e-5
    )
    settings = Training(rounds=2, cohort_size=2, sampling_rate=0.1, dimension=650)
    plan = make_plan(clients, settings, selection="unbiased", seed=0)
    train(plan, "logistic", "digits", out=tmp_path / "run", device="cpu")
    return tmp_path / "run"


def test_in_words_and_as_json(terminal, run):
    shown = terminal("receipt", run, "b")
    assert "promised   epsilon 5" in shown
    assert "The promise holds" in shown
    found = terminal.json("receipt", run, "b")
    assert found["holds"]
    assert found["certified_epsilon"] <= 5


def test_an_id_with_markup_is_inert(terminal, run):
    assert "[red]a[/red]" in terminal("receipt", run, "[red]a[/red]")


def test_no_such_client_and_no_run(terminal, run, tmp_path):
    terminal("receipt", run, "c", code=2)
    assert "client" in terminal.errors
    terminal("receipt", tmp_path, "b", code=3)


def test_an_edited_ledger_is_noticed(terminal, run):
    with open(run / "ledger.jsonl", "a") as file:
        file.write('{"round": 0, "draws": {"b": 2}}\n')
    terminal("receipt", run, "b", code=1)
    assert "ledger.jsonl, line 4" in terminal.errors

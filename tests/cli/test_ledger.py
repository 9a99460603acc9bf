# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Event, History, attack_risk, promised_risk
from dpcohort.deploy.ledger import ClientLedger, DrawKey

TERMS = """
epsilon = 2.0
delta = 1e-5
clip = 1.0
sampling_rate = 0.1
local_steps = 1
rounds = 60
draws = 60
least_noise_multiplier = 2.0
"""


@pytest.fixture
def terms(tmp_path):
    path = tmp_path / "terms.toml"
    path.write_text(TERMS)
    return path


@pytest.fixture
def ledger(terminal, tmp_path, terms):
    path = tmp_path / "ward.ledger"
    terminal("ledger", "init", path, "--dataset", "ward", "--epsilon", 1.5, "--delta", 1e-5)
    terminal("ledger", "accept", path, "--dataset", "ward", "--run", "[red]", "--terms", terms)
    with ClientLedger(path) as opened:
        step = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=1)
        key = DrawKey(dataset="ward", run="[red]", round=0, draw=0)
        opened.reserve(key, step, clip=1.0)
        opened.release(key, b"noisy")
    return path


def test_init_and_accept(terminal, tmp_path, terms):
    path = tmp_path / "l"
    made = terminal.json("ledger", "init", path, "--dataset", "a", "--epsilon", 2, "--delta", 1e-5)
    assert made["entries"] == 2
    more = ("--dataset", "b", "--epsilon", 1, "--delta", 1e-6, "--across-runs", "summed")
    assert "may spend epsilon 1" in terminal("ledger", "init", path, *more)
    accept = ("ledger", "accept", path, "--dataset", "a", "--run", "r", "--terms", terms)
    found = terminal.json(*accept)
    assert found["affordable_draws"] == 60
    assert found["certified_epsilon"] <= 2
    assert "60 of them fit" in terminal(*accept)


def test_a_plan_is_accepted_as_what_it_asks_of_the_client(terminal, tmp_path):
    clients = Population.from_arrays(
        ids=["north", "lake"], sizes=[600, 600], epsilon=[0.01, 8.0], delta=1e-5
    )
    settings = Training(rounds=2, cohort_size=1, batch_size=60)
    plan = make_plan(clients, settings, selection="best-threshold", seed=0)
    plan.save(tmp_path / "plan.json")
    path, told = tmp_path / "l", {}
    for name in clients.ids:
        terminal("ledger", "init", path, "--dataset", name, "--epsilon", 8, "--delta", 1e-5)
        asked = ("ledger", "accept", path, "--dataset", name, "--run", "r", "--terms")
        k = clients.index_of(name)
        code = 0 if plan.drawn[k] else 2
        told[name] = terminal(*asked, tmp_path / "plan.json", code=code)
        if plan.drawn[k]:
            assert f"at most {plan.counts[k]} draws of 1 steps" in told[name]
        else:
            assert "with a budget that is drawn" in terminal.errors
    assert not plan.drawn.all()


def test_show_and_receipt(terminal, ledger, tmp_path):
    assert "[red]: 1 of 60 draws" in terminal("ledger", "show", ledger)
    assert terminal.json("ledger", "show", ledger)["datasets"][0]["runs"][0]["run"] == "[red]"
    shown = terminal("ledger", "receipt", ledger, "--dataset", "ward", "--out", tmp_path / "r.json")
    assert "The promise holds" in shown
    written = json.loads((tmp_path / "r.json").read_text())
    assert written == terminal.json("ledger", "receipt", ledger, "--dataset", "ward")
    assert written["head"] in shown


@pytest.mark.parametrize("across_runs", ["composed", "summed"])
def test_a_letter_of_all_runs(terminal, tmp_path, terms, across_runs):
    path, page = tmp_path / "ward.ledger", tmp_path / "letter.html"
    cap = ("--dataset", "ward", "--epsilon", 2.5, "--delta", 1e-5, "--across-runs", across_runs)
    terminal("ledger", "init", path, *cap)
    terminal("ledger", "accept", path, "--dataset", "ward", "--run", "may", "--terms", terms)
    step = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=1)
    with ClientLedger(path) as opened:
        for round in range(3):
            key = DrawKey(dataset="ward", run="may", round=round, draw=0)
            opened.reserve(key, step, clip=1.0)
    terminal("ledger", "receipt", path, "--dataset", "ward", "--letter", page)
    text = page.read_text()
    # Composed: the three steps that were counted. Summed: all that the begun run may still do.
    risk = promised_risk(epsilon=2.0, delta=1e-5)
    if across_runs == "composed":
        risk = attack_risk(History((replace(step, count=3),)), delta=1e-5)
    assert f"<strong>{math.ceil(1000 * risk.hits(0.05)) / 10:.1f} %</strong>" in text
    assert "3 of 60" in text
    assert "dpcohort ledger verify" in text


def test_verify(terminal, ledger):
    found = terminal.json("ledger", "verify", ledger)
    assert found["holds"]
    assert "all hold" in terminal("ledger", "verify", ledger, "--head", found["head"])
    assert "head:" in terminal("ledger", "verify", ledger, "--head", "0" * 64, code=1)
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("DROP TRIGGER no_delete")
        connection.execute("DELETE FROM entries WHERE seq = 4")
    assert "entry 4 is missing" in terminal("ledger", "verify", ledger, code=1)
    terminal("ledger", "show", ledger, code=1)
    assert "entry 4 is missing" in terminal.errors


def test_export(terminal, ledger, tmp_path):
    lines = terminal("ledger", "export", ledger).splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5]
    terminal("ledger", "export", ledger, "--out", tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text().splitlines() == lines
    terminal("ledger", "export", ledger, "--backup", tmp_path / "copy")
    assert terminal("ledger", "export", tmp_path / "copy").splitlines() == lines


def test_a_cap_a_year_and_a_permit_with_an_end(terminal, tmp_path, terms):
    path = tmp_path / "l"
    cap = ("--dataset", "a", "--epsilon", 1.9, "--delta", 1e-5)
    assert "in any 365 days" in terminal("ledger", "init", path, *cap, "--per", "365 days")
    accept = ("ledger", "accept", path, "--dataset", "a", "--terms", terms)
    assert "until 2999-12-31. 60 of them fit" in terminal(
        *accept, "--run", "r", "--until", "2999-12-31"
    )
    terminal(*accept, "--run", "s", "--until", "2020-12-31", code=4)
    assert "the permit ended with 2020-12-31" in terminal.errors
    terminal(*accept, "--run", "s", "--until", "2999-13-31", code=2)
    with ClientLedger(path) as opened:
        step = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=1)
        for round in range(60):
            opened.reserve(DrawKey(dataset="a", run="r", round=round, draw=0), step, clip=1.0)
    shown = terminal("ledger", "show", path)
    assert "over all runs in any 365 days" in shown
    assert "until 2999-12-31" in shown
    assert "now, less after 2" in shown
    strong = tmp_path / "strong.toml"
    strong.write_text(TERMS.replace("sampling_rate = 0.1", "sampling_rate = 0.1001"))
    told = terminal.json(
        "ledger", "accept", path, "--dataset", "a", "--terms", strong, "--run", "t"
    )
    receipt = terminal.json("ledger", "receipt", path, "--dataset", "a")
    assert (receipt["per"], receipt["holds"]) == ("365 days", True)
    if told["affordable_draws"] == 0:
        assert told["possible_again"] == receipt["fewer_after"]
    terminal("ledger", "init", path, "--dataset", "b", *cap[2:], "--per", "a year", code=2)
    assert "'365 days'" in terminal.errors


def test_bad_input(terminal, ledger, terms, tmp_path):
    again = ("--dataset", "ward", "--epsilon", 9, "--delta", 1e-5)
    terminal("ledger", "init", ledger, *again, code=2)
    assert "fixed when the data set is registered" in terminal.errors
    terminal("ledger", "init", ledger, "--dataset", "x", "--epsilon", 0, "--delta", 1e-5, code=2)
    terminal("ledger", "show", tmp_path / "none", code=2)
    assert "no client ledger" in terminal.errors
    terminal("ledger", "receipt", ledger, "--dataset", "x", code=2)
    accept = ("ledger", "accept", ledger, "--dataset", "ward", "--run", "next", "--terms")
    terminal(*accept, tmp_path / "none.toml", code=2)
    terms.write_text(TERMS.replace("least_noise_multiplier = 2.0", "least_noise_multiplier = 1.0"))
    terminal(*accept, terms, code=4)
    assert "they state" in terminal.errors


def test_a_name_that_is_refused_leaves_no_ledger(terminal, tmp_path):
    cap = ("--epsilon", 1, "--delta", 1e-5)
    terminal("ledger", "init", tmp_path / "l", "--dataset", " x", *cap, "--json", code=2)
    assert "no space at either end" in terminal.errors
    assert list(tmp_path.iterdir()) == []

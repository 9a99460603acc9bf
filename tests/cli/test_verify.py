# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dpcohort import Population, Training, load_dataset, make_plan
from dpcohort.accounting import Contract
from dpcohort.runs import train


@pytest.fixture
def run(tmp_path):
    clients = Population.from_arrays(
        ids=["strict", "loose"], sizes=[600, 600], epsilon=[0.5, 5.0], delta=1e-5
    )
    settings = Training(rounds=3, cohort_size=2, sampling_rate=0.1, dimension=650)
    plan = make_plan(clients, settings, selection="unbiased", seed=0)
    train(plan, "logistic", "digits", out=tmp_path / "run", device="cpu")
    return tmp_path / "run"


def test_a_good_run(terminal, run):
    shown = terminal("verify", run)
    assert "holds; SIMULATION with noise of a seed, NOT PRIVATE; 2 promises and 3 rounds" in shown
    assert terminal.json("verify", run)[0]["holds"]


def test_on_how_many_members_a_distributed_run_counts(terminal, tmp_path):
    clients = Population.from_arrays(sizes=[400] * 3, epsilon=[0.5, 1.0, 5.0], delta=1e-5)
    settings = Training(rounds=2, cohort_size=3, sampling_rate=0.1, dimension=650)
    for colluding, words in ((0, "3 honest members"), (2, "1 honest member")):
        trust = Contract(trust="distributed", colluding=colluding)
        plan = make_plan(clients, settings, seed=0, accountant=trust)
        train(plan, "logistic", "digits", out=tmp_path / words, device="cpu")
        shown = " ".join(terminal("verify", tmp_path / words).split())
        assert f"counts on {words} of each cohort" in shown


def test_an_overspend_ends_with_code_1_and_names_client_and_numbers(terminal, run):
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join([*lines, *lines[1:]]))
    shown = terminal("verify", run, code=1)
    assert "BROKEN" in shown
    assert "overspent: strict: spent epsilon" in shown
    assert "promised 0.5" in shown
    found = json.loads(terminal("verify", run, "--json", code=1))
    assert {f["kind"] for f in found[0]["findings"]} == {"overspent", "mismatch"}


def test_long_lists_are_cut(terminal, run):
    with open(run / "ledger.jsonl", "a") as file:
        file.write('{"round": 99, "draws": {}}\n' * 30)
    assert "more (--json has all)" in terminal("verify", run, code=1)


def test_no_run_and_no_such_method(terminal, run, tmp_path):
    terminal("verify", tmp_path / "none", code=3)
    assert "dpcohort train" in terminal.errors
    terminal("verify", run, "--method", "guess", code=2)


def test_a_folder_of_runs(terminal, run, tmp_path):
    assert [found["path"] for found in terminal.json("verify", tmp_path)] == [str(run)]


@pytest.fixture
def private(run, tmp_path):
    from dpcohort.plan import Plan

    place = tmp_path / "private"
    plan = Plan.load(run / "plan.json")
    train(plan, "logistic", replace(load_dataset("digits"), public=False), out=place, device="cpu")
    return place


def test_it_says_which_run_is_private_and_whose_word_that_is(terminal, run, private):
    shown = terminal("verify", run, private).replace("\n", "")  # long paths are broken
    simulated, rest = shown.split(f"{private}: ")
    assert "SIMULATION with noise of a seed, NOT PRIVATE" in simulated
    assert rest.startswith("holds; PRIVATE, by the word of those below; ")
    assert "the operator: that batches and noise were drawn afresh" in rest
    found = terminal.json("verify", run, private)
    assert [one["kind"] for one in found] == ["simulation", "private"]
    assert set(found[1]["whose_word"]) == {"computed again", "the operator"}
    terminal("verify", private, "--require", "private")
    refused = terminal("verify", run, "--require", "private", code=1)
    assert "NOT AS REQUIRED" in refused
    assert "a private run is asked for; this is a simulation" in refused
    terminal("verify", run, "--require", "secret", code=2)


def test_a_signed_run_says_by_whom_and_can_be_held_to_it(terminal, private, tmp_path):
    secret = tmp_path / "operator.key"
    terminal("sign", private, "--key", secret, code=3)
    assert f"dpcohort guard identity {secret}" in terminal.errors
    public = terminal.json("guard", "identity", secret)["public"]
    other = terminal.json("guard", "identity", tmp_path / "other.key")["public"]
    assert "not signed" in terminal("verify", private, "--key", public, code=1)
    signed = terminal.json("sign", private, "--key", secret)
    assert (signed["key"], signed["kind"]) == (public, "private")
    assert (private / "signature.json").stat().st_mode & 0o077 == 0
    assert f"signed by the key {public}" in terminal("verify", private, "--key", public)
    (found,) = terminal.json("verify", private)
    assert (found["signed_by"], found["seal"]) == (public, signed["seal"])
    assert "NOT AS REQUIRED" in terminal("verify", private, "--key", other, code=1)
    terminal("verify", private, "--key", "me", code=2)
    terminal("sign", private, "--key", tmp_path / "other.key", code=2)  # it has a signature
    said = json.loads((private / "signature.json").read_text())
    (private / "signature.json").write_text(json.dumps({**said, "key": other}))
    assert "has not signed this result" in terminal("verify", private, "--key", other, code=1)


def test_what_does_not_verify_or_is_not_finished_is_not_signed(terminal, run, tmp_path):
    secret = tmp_path / "operator.key"
    terminal("guard", "identity", secret)
    before = (run / "environment.json").read_text()
    (run / "environment.json").write_text("{}")
    terminal("sign", run, "--key", secret, code=1)
    assert "environment.json: its SHA-256" in terminal.errors
    (run / "environment.json").write_text(before)
    (run / "result.json").unlink()
    terminal("sign", run, "--key", secret, code=2)
    assert "--resume" in terminal.errors
    shown = terminal("verify", run)
    assert "UNFINISHED, holds so far; SIMULATION" in shown
    assert "unfinished: 3 of 3 rounds are counted" in shown
    assert not (run / "signature.json").exists()

# SPDX-License-Identifier: Apache-2.0
"""``replan`` and ``train --plan``: from a list of clients to a run that goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.data import load_dataset
from dpcohort.runs import Run, verify_run

WARDS = {"north": (60, 1.0), "south": (60, 2.0), "east": (60, 4.0), "west": (60, 8.0)}


def write_clients(path, clients):
    rows = "".join(f"{name},{size},{epsilon},1e-5\n" for name, (size, epsilon) in clients.items())
    path.write_text("id,size,epsilon,delta\n" + rows)
    return path


def write_data(folder, sizes):
    """Digits of named clients: a set of one's own, and a column that says whose records are."""
    digits = load_dataset("digits")
    total = sum(sizes.values())
    arrays = {
        "train_inputs": digits.train_inputs[:total],
        "train_labels": digits.train_labels[:total],
    }
    arrays |= {"test_inputs": digits.test_inputs, "test_labels": digits.test_labels}
    np.savez(folder / "wards.npz", **arrays)
    np.save(folder / "column.npy", np.repeat(list(sizes), list(sizes.values())))


@pytest.fixture
def wards(tmp_path):
    """A config with four wards, in a folder with their data."""
    write_clients(tmp_path / "clients.csv", WARDS)
    write_data(tmp_path, {name: size for name, (size, _) in WARDS.items()})
    config = tmp_path / "wards.toml"
    config.write_text(
        '[population]\nclients = "clients.csv"\n'
        "[training]\nrounds = 4\ncohort_size = 3\nsampling_rate = 1.0\ndimension = 650\n"
        '[data]\nname = "./wards.npz"\npartition = "column"\ncolumn = "column.npy"\n'
        '[selection]\nrule = "unbiased"\n[schedule]\nseed = 3\n[model]\nname = "logistic"\n'
    )
    return config


def test_a_frozen_plan_trains_the_very_same_model(terminal, wards, tmp_path):
    plan = tmp_path / "plan.json"
    terminal("plan", wards, "--out", plan)
    terminal("train", wards, "--out", tmp_path / "A", "--device", "cpu")
    other = ["--set", "training.rounds=9", "--set", "population.clients=none.csv"]
    frozen = ["--plan", plan, "--out", tmp_path / "B", "--device", "cpu"]
    shown = terminal("train", wards, *frozen, *other)
    assert "the plan has training.rounds = 4, the config 9; the plan counts" in shown
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "AB"]
    assert models[0] == models[1]
    assert verify_run(tmp_path / "B").holds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.name=mlp", "plan was made for a model of 650 parameters"),
        ("data.name=digits", "the data has"),
    ],
)
def test_a_frozen_plan_that_does_not_fit_is_refused(terminal, wards, tmp_path, change, words):
    plan, out = tmp_path / "plan.json", tmp_path / "B"
    terminal("plan", wards, "--out", plan)
    terminal("train", wards, "--plan", plan, "--out", out, "--set", change, code=2)
    assert words in " ".join(terminal.errors.split())
    assert not out.exists()


def test_clients_and_sizes_of_a_frozen_plan_must_be_those_of_the_data(terminal, wards, tmp_path):
    plan = tmp_path / "plan.json"
    terminal("plan", wards, "--out", plan)
    write_data(tmp_path, {"north": 60, "south": 60, "east": 61, "west": 60})
    terminal("train", wards, "--plan", plan, "--out", tmp_path / "B", code=2)
    assert "'east' has 61 records but was planned with 60" in " ".join(terminal.errors.split())
    write_data(tmp_path, {"north": 60, "south": 60, "up": 60, "west": 60})
    terminal("train", wards, "--plan", plan, "--out", tmp_path / "B", code=2)
    assert "'east' is in the clients but not in the column" in " ".join(terminal.errors.split())
    assert not (tmp_path / "B").exists()


def test_wards_leave_join_change_and_bring_records(terminal, wards, tmp_path):
    run, again, plan = tmp_path / "A", tmp_path / "B", tmp_path / "go.json"
    terminal("train", wards, "--out", run, "--device", "cpu")
    now = {"south": (60, 1.0), "east": (60, 8.0), "west": (90, 12.0), "late": (40, 2.0)}
    new = write_clients(tmp_path / "new.csv", now)

    terminal("replan", run, "--clients", new, code=2)
    assert "Say how many more: --rounds N" in terminal.errors
    terminal("replan", run, "--clients", new, "--rounds", 3, "--out", plan, code=4)
    assert "south: promised epsilon 1 at delta 1e-05, has spent 1.9" in terminal.errors
    assert "--drop-exhausted" in terminal.errors
    assert not plan.exists()

    asked = ["replan", run, "--clients", new, "--rounds", 3, "--seed", 1, "--drop-exhausted"]
    shown = " ".join(terminal(*asked, "--out", plan).split())
    for words in ("epsilon 4 -> 8", "late joins", "south exhausted, leaves"):
        assert words in shown
    assert f"train CONFIG --plan {plan} --after {run}" in shown
    found = {row["client"]: row for row in json.loads(terminal(*asked, "--json"))["clients"]}
    assert found["north"]["change"] == "leaves"
    assert found["west"]["change"] == "epsilon 8 -> 12, records 60 -> 90"
    assert found["north"]["spent"] == pytest.approx(1.0, rel=1e-2)

    write_data(tmp_path, {"east": 60, "west": 90, "late": 40})
    train = ["train", wards, "--plan", plan, "--device", "cpu", "--out", again]
    terminal(*train, code=2)
    assert "--after RUN" in terminal.errors
    terminal(*train, "--after", run, "--seeds", 2, code=2)
    assert not again.exists()
    terminal(*train, "--after", run)
    assert terminal("verify", run, again).count("holds") == 2
    receipt = terminal("receipt", again, "west")
    assert "before" in receipt
    assert "all runs together" in receipt
    assert Run.load(again).receipt("west").certified_epsilon > 8


def test_after_needs_a_plan_and_a_run(terminal, wards, tmp_path):
    terminal("train", wards, "--after", tmp_path / "A", "--out", tmp_path / "B", code=2)
    assert "--after goes with a plan" in terminal.errors
    terminal("replan", tmp_path / "A", "--clients", tmp_path / "clients.csv", code=3)
    assert "there is no run" in terminal.errors
    (tmp_path / "bad.json").write_text("{}")
    terminal("train", wards, "--plan", tmp_path / "bad.json", "--out", tmp_path / "B", code=2)


@pytest.fixture
def charged(wards):
    """The same config after charged tuning that spent half of every budget."""
    tuned = wards.with_name("tuned.toml")
    tuned.write_text(wards.read_text() + '[tuning]\nsource = "charged"\nshare = 0.5\n')
    return tuned


def test_a_plan_made_before_the_tuning_does_not_spend_the_budget_again(
    terminal, wards, charged, tmp_path
):
    whole, left = tmp_path / "whole.json", tmp_path / "left.json"
    terminal("plan", wards, "--out", whole)
    terminal("plan", charged, "--out", left)
    out = ["--out", tmp_path / "A", "--device", "cpu"]
    terminal("train", charged, "--plan", whole, *out, code=2)
    assert "the plan spends epsilon 1 of 'north', and 0.5 is left" in terminal.errors
    assert not (tmp_path / "A").exists()
    terminal("train", charged, "--plan", left, *out)


def test_what_tuning_spent_is_not_forgotten_by_going_on(terminal, charged, tmp_path):
    terminal("train", charged, "--out", tmp_path / "A", "--device", "cpu")
    more = ["--clients", tmp_path / "clients.csv", "--rounds", 2, "--out", tmp_path / "plan.json"]
    terminal("replan", tmp_path / "A", *more, code=2)
    assert "spent part of the budgets before this run" in terminal.errors
    assert not (tmp_path / "plan.json").exists()

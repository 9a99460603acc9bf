# SPDX-License-Identifier: Apache-2.0
"""``replan`` and ``train --plan``: from a list of clients to a run that goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.config import load_config
from dpcohort.config._settings import rewritten
from dpcohort.data import load_dataset
from dpcohort.plan import Plan
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
        '[selection]\nrule = "unbiased"\n[schedule]\nseed = 3\n[run]\nsimulate = 0\n'
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


def test_a_frozen_plan_with_another_promise_than_the_config_says_so(terminal, wards, tmp_path):
    distributed = [
        "privacy.trust=distributed",
        "privacy.colluding=1",
        "privacy.neighbours=replace-one",
    ]
    changes = [word for change in distributed for word in ("--set", change)]
    notes = (
        ("trust", "distributed", "local"),
        ("colluding", "1", "0"),
        ("neighbours", "replace-one", "zero-out"),
    )
    for name, planned, asked in (("A", changes, []), ("B", [], changes)):
        plan = tmp_path / f"{name}.json"
        terminal("plan", wards, *planned, "--out", plan)
        run = ["--plan", plan, "--out", tmp_path / name, "--device", "cpu"]
        shown = terminal("train", wards, *asked, *run)
        for key, one, other in notes:
            said = (one, other) if planned else (other, one)
            words = f"the plan has privacy.{key} = {said[0]}, the config {said[1]}; the plan counts"
            assert words in shown
        assert "privacy.sampler" not in shown


def test_a_ward_leaves_where_all_were_in_every_round(terminal, wards, tmp_path):
    distributed = ["--set", "privacy.trust=distributed", "--set", "training.cohort_size=4"]
    run, plan = tmp_path / "A", tmp_path / "go.json"
    terminal(
        "train",
        wards,
        *distributed,
        "--set",
        "privacy.colluding=1",
        "--out",
        run,
        "--device",
        "cpu",
    )
    new = write_clients(tmp_path / "new.csv", {n: (60, 3 * e) for n, (_, e) in WARDS.items()})
    assert "who stay" not in terminal("replan", run, "--clients", new, "--rounds", 2)
    new.write_text("".join(new.read_text().splitlines(keepends=True)[:-1]))
    ask = ["replan", run, "--clients", new, "--rounds", 2]
    terminal(*ask, code=2)
    assert "counted on 3 honest members" in terminal.errors
    terminal(*ask, "--cohort-size", 2, code=2)

    terminal("train", wards, *distributed, "--set", "privacy.colluding=0.5",
             "--out", tmp_path / "B",
             "--device", "cpu")  # fmt: skip
    ask[1] = tmp_path / "B"
    assert "now all 3 who stay are" in terminal(*ask, "--out", plan)
    assert Plan.load(plan).training.cohort_size == 3


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


def test_the_table_says_what_is_spent_if_all_others_collude(terminal, wards, tmp_path):
    distributed = ["--set", "privacy.trust=distributed", "--set", "training.cohort_size=4"]
    terminal("train", wards, "--out", tmp_path / "A", "--device", "cpu", *distributed)
    more = {name: (size, 2 * epsilon) for name, (size, epsilon) in WARDS.items()}
    new = write_clients(tmp_path / "new.csv", more)
    asked = ["replan", tmp_path / "A", "--clients", new, "--rounds", 2, "--seed", 1]
    plan = tmp_path / "go.json"
    shown = terminal(*asked, "--out", plan)
    assert "if all others collude with the server" in shown
    found = json.loads(terminal(*asked, "--json"))["clients"]
    assert [row["alone_epsilon"] for row in found] == Plan.load(
        plan
    ).certificate.alone_epsilon.tolist()
    assert all(f"{row['alone_epsilon']:.4g}" in shown for row in found)


def test_after_needs_a_plan_and_a_run(terminal, wards, tmp_path):
    terminal("train", wards, "--after", tmp_path / "A", "--out", tmp_path / "B", code=2)
    assert "--after goes with a plan" in terminal.errors
    terminal("replan", tmp_path / "A", "--clients", tmp_path / "clients.csv", code=3)
    assert "there is no run" in terminal.errors
    (tmp_path / "bad.json").write_text("{}")
    terminal("train", wards, "--plan", tmp_path / "bad.json", "--out", tmp_path / "B", code=2)


@pytest.fixture
def charged(wards, tuned):
    """The same config after charged tuning that spent half of every budget."""
    changed = wards.with_name("tuned.toml")
    text = wards.read_text()
    changed.write_text(rewritten(text, tuned(load_config(wards), 0.5)))
    return changed


def test_a_plan_made_before_the_tuning_does_not_spend_the_budget_again(
    terminal, wards, charged, tmp_path
):
    whole, left = tmp_path / "whole.json", tmp_path / "left.json"
    terminal("plan", wards, "--out", whole)
    terminal("plan", charged, "--out", left)
    out = ["--out", tmp_path / "A", "--device", "cpu"]
    terminal("train", charged, "--plan", whole, *out, code=2)
    assert "the plan does not know what it took" in terminal.errors
    assert not (tmp_path / "A").exists()
    terminal("train", charged, "--plan", left, *out)


def test_what_tuning_spent_stays_spent_when_a_run_goes_on(terminal, charged, tmp_path):
    run, again, plan = tmp_path / "A", tmp_path / "B", tmp_path / "go.json"
    terminal("train", charged, "--out", run, "--device", "cpu")
    now = {"north": (60, 1.0), "south": (60, 2.5), "east": (60, 1.5), "west": (60, 9.0)}
    new = write_clients(tmp_path / "new.csv", now)
    asked = ["replan", run, "--clients", new, "--rounds", 2, "--seed", 1]

    terminal(*asked, "--out", plan, code=4)
    assert "north: promised epsilon 0.5 at delta 5e-06, has spent 0.4998" in terminal.errors
    assert "(beside 0.5 that was paid beside the rounds)" in terminal.errors
    assert "east: promised epsilon 1.5 at delta 1e-05, has spent 2 at 5e-06 beside the rounds" in (
        terminal.errors
    )
    found = json.loads(terminal(*asked, "--drop-exhausted", "--json"))
    rows = {row["client"]: row for row in found["clients"]}
    assert rows["south"]["change"] == "epsilon 2 -> 2.5"
    assert rows["south"]["spent"] == pytest.approx(2.0, rel=1e-2)
    assert rows["east"]["change"] == "exhausted, leaves"

    terminal(*asked, "--drop-exhausted", "--out", plan)
    left = Plan.load(plan).population
    assert left.epsilon.tolist() == [1.5, 5.0]  # of south and west, less 1 and 4 of tuning
    assert left.delta.tolist() == [5e-6, 5e-6]
    train = ["train", charged, "--plan", plan, "--after", run, "--device", "cpu", "--out", again]
    assert "note: 120 records are of no client of the plan, and are not used." in terminal(*train)
    assert terminal("verify", run, again).count("holds") == 2
    receipt = Run.load(again).receipt("south")
    assert receipt.charged["promised_epsilon"] == pytest.approx(2.5)
    assert [one["epsilon"] for one in receipt.charged["paid"]] == [1.0]
    assert 2.4 < receipt.total_epsilon <= 2.5
    assert receipt.total_delta == pytest.approx(1e-5)
    # And once more: what was spent before the first part is in the chain, and is counted once.
    later = write_clients(tmp_path / "later.csv", {"south": (60, 4.0), "east": (60, 6.0)})
    terminal("replan", again, "--clients", later, "--rounds", 2, "--out", tmp_path / "third.json")
    assert Plan.load(tmp_path / "third.json").population.epsilon.tolist() == [3.0, 4.0]


def test_what_was_paid_between_two_runs_is_counted_by_the_one_that_goes_on(
    terminal, charged, tuned, tmp_path
):
    run, again, plan = tmp_path / "A", tmp_path / "B", tmp_path / "go.json"
    terminal("train", charged, "--out", run, "--device", "cpu")
    twice = tmp_path / "twice.toml"
    twice.write_text(rewritten(charged.read_text(), tuned(load_config(charged), 0.5)))
    more = {"north": (60, 6.0), "south": (60, 9.0), "east": (60, 12.0), "west": (60, 20.0)}
    new = write_clients(tmp_path / "new.csv", more)
    ask = ["replan", run, "--clients", new, "--rounds", 2, "--out", plan]
    terminal(*ask)
    go_on = ["train", twice, "--plan", plan, "--after", run, "--out", again, "--device", "cpu"]
    terminal(*go_on, code=2)
    assert "the plan does not know what it took" in terminal.errors
    assert not again.exists()
    terminal(*ask, "--config", twice)
    assert Plan.load(plan).population.epsilon.tolist() == [5.25, 7.5, 9.0, 14.0]
    terminal(*go_on)
    assert terminal("verify", run, again).count("holds") == 2
    receipt = Run.load(again).receipt("west")
    assert [one["epsilon"] for one in receipt.charged["paid"]] == [4.0, 2.0]
    assert 19.8 < receipt.total_epsilon <= 20.0
    # Who leaves paid for it as well, on top of a run that had spent all that was left.
    some = write_clients(tmp_path / "some.csv", {"west": (60, 20.0), "south": (60, 9.0)})
    ask = ["replan", run, "--clients", some, "--rounds", 2, "--out", tmp_path / "no.json"]
    (run / "continued.json").unlink()
    terminal(*ask, "--config", twice, code=4)
    assert "'north' would leave having spent epsilon 1.249" in terminal.errors
    assert not (tmp_path / "no.json").exists()
    # A plan whose own list of charges is shorter than that of the run before it is found.
    kept = json.loads((again / "plan.json").read_text())
    kept["past"]["paid"]["charges"] = kept["past"]["paid"]["charges"][1:]
    (again / "plan.json").write_text(json.dumps(kept))
    terminal("verify", again, code=1)


CLINICS = {"oslo": 80, "bergen": 60, "molde": 40}


def write_table(path, sizes):
    """Patients of clinics; what is in a clinic's rows depends on its name alone."""
    rows = []
    for name, size in sizes.items():
        rng = np.random.default_rng(list(name.encode()))
        ages = rng.normal(55, 12, size).round(1)
        rows += [f"{name},{age},{'ill' if age > 55 else 'well'}" for age in ages]
    path.write_text("\n".join(["clinic,age,outcome", *rows]))


@pytest.fixture
def clinics(tmp_path):
    """A config with a table of three clinics, whose list has no sizes."""
    write_table(tmp_path / "patients.csv", CLINICS)
    (tmp_path / "clients.csv").write_text(
        "id,epsilon,delta\noslo,4,1e-5\nbergen,4,1e-5\nmolde,4,1e-5\n"
    )
    config = tmp_path / "clinics.toml"
    config.write_text(
        '[population]\nclients = "clients.csv"\n'
        "[training]\nrounds = 3\ncohort_size = 2\nsampling_rate = 1.0\n"
        '[data]\nname = "patients.csv"\nlabel = "outcome"\nlabels = ["well", "ill"]\n'
        'client = "clinic"\ntest_share = 0.25\n[data.bounds]\nage = [0, 110]\n'
        '[selection]\nrule = "unbiased"\n[schedule]\nseed = 3\n[run]\ndevice = "cpu"\n'
        "simulate = 0\n"
    )
    return config


def test_a_clinic_leaves_a_table_that_still_has_its_rows(terminal, clinics, tmp_path):
    run, again, plan = tmp_path / "A", tmp_path / "B", tmp_path / "go.json"
    terminal("train", clinics, "--out", run)
    new = tmp_path / "new.csv"
    new.write_text("id,epsilon,delta\noslo,8,1e-5\nmolde,8,1e-5\n")
    terminal("replan", run, "--clients", new, "--rounds", 2, "--out", plan)
    assert Plan.load(plan).population.sizes.tolist() == [60, 30]  # without test records
    shown = terminal("train", clinics, "--plan", plan, "--after", run, "--out", again)
    assert "rows of bergen are not used: not in the plan." in shown
    checked = json.loads((again / "result.json").read_text())["check"]
    assert checked["records"] == 30  # of oslo and molde
    went_on = Run.load(again)
    rows = went_on.partition.indices
    assert not set(rows) & set(range(60, 105))  # where bergen's training records are
    assert terminal("verify", run, again).count("holds") == 2


def test_a_clinic_joins_with_its_rows(terminal, clinics, tmp_path):
    run, again, plan = tmp_path / "A", tmp_path / "B", tmp_path / "go.json"
    terminal("train", clinics, "--out", run)
    new = tmp_path / "new.csv"
    new.write_text("id,epsilon,delta\noslo,8,1e-5\nmolde,8,1e-5\ntromso,2,1e-5\n")
    ask = ["replan", run, "--clients", new, "--rounds", 2, "--out", plan]
    terminal(*ask, code=2)
    assert "'tromso' has no record in the data" in terminal.errors
    assert "--config FILE.toml" in terminal.errors
    write_table(tmp_path / "more.csv", {**CLINICS, "tromso": 48})
    other = tmp_path / "other.toml"
    other.write_text(clinics.read_text().replace("patients.csv", "more.csv"))
    assert "tromso joins" in " ".join(terminal(*ask, "--config", other).split())
    terminal("train", clinics, "--plan", plan, "--after", run, "--out", again, code=2)
    assert "the plan has the client 'tromso', and no training record" in terminal.errors
    terminal("train", other, "--plan", plan, "--after", run, "--out", again)
    assert Run.load(again).partition.sizes.tolist() == [60, 30, 36]
    assert terminal("verify", run, again).count("holds") == 2


def write_without(clinics):
    """The same config before its bounds were estimated."""
    first = clinics.with_name("first.toml")
    text = clinics.read_text().replace('estimated_bounds = "b.json"', "bounds = { age = [0, 110] }")
    first.write_text(text)
    return first


def test_what_an_estimate_cost_is_in_receipts_and_goes_on(terminal, clinics, tmp_path):
    run, again, plan = tmp_path / "A", tmp_path / "B", tmp_path / "go.json"
    terminal("data", "bounds", clinics, "--range", "age=0:320", "--share", 0.25,
             "-o", tmp_path / "b.json")  # fmt: skip
    text = clinics.read_text().replace("[data.bounds]\nage = [0, 110]", "")
    clinics.write_text(text.replace("test_share", 'estimated_bounds = "b.json"\ntest_share'))
    terminal("train", clinics, "--out", run)
    assert Plan.load(run / "plan.json").past.paid.promised["oslo"] == (4.0, 1e-5)
    shown = terminal("receipt", run, "oslo", "--letter", tmp_path / "letter.html", "--draft")
    assert "promised   epsilon 4 at delta 1e-05 in all" in shown
    assert "epsilon 1 at delta 0 on an estimate of bounds" in shown
    assert "epsilon 3 at delta 1e-05 for training" in shown
    # As in docs/how-to/join-leave-change.md.
    assert "certified  epsilon 2.9993, computed anew." in shown
    assert "in all     epsilon 3.9993 of 4, delta 1e-05 of 1e-05: what was charged" in shown
    letter = " ".join((tmp_path / "letter.html").read_text().split())
    assert "ε = 4 at δ = 0.00001" in letter
    assert "ε = 1 of the promise was spent on an estimate of bounds" in letter

    # What is paid after the run is within its promises, and its receipts have it.
    more = ["data", "bounds", clinics, "--range", "age=0:320", "--after", run]
    terminal(*more, "--share", 0.1, "-o", tmp_path / "late.json", code=4)
    assert "would have spent epsilon 4.29" in terminal.errors
    assert not (tmp_path / "late.json").exists()
    terminal(*more, "--share", 1e-4, "-o", tmp_path / "late.json")
    assert len(list((run / "charges").glob("*.json"))) == 1
    receipt = Run.load(run).receipt("oslo")
    assert [one["epsilon"] for one in receipt.charged["paid"]] == pytest.approx([1.0, 3e-4])
    terminal("verify", run)

    new = tmp_path / "new.csv"
    new.write_text("id,epsilon,delta\noslo,6,1e-5\nmolde,6,1e-5\nnarvik,2,1e-5\n")
    write_table(tmp_path / "patients.csv", {**CLINICS, "narvik": 48})
    terminal("replan", run, "--clients", new, "--rounds", 2, "--out", plan)
    # Who joins did not pay for the estimate: its records were not looked at.
    assert Plan.load(plan).population.epsilon.tolist() == pytest.approx([4.9997, 4.9997, 2.0])
    terminal("train", clinics, "--plan", plan, "--after", run, "--out", again)
    (tmp_path / "clients.csv").write_text(
        "id,epsilon,delta\noslo,6,1e-5\nmolde,6,1e-5\nbergen,4,1e-5\nnarvik,2,1e-5\n"
    )
    terminal(*more, "--share", 1e-4, "-o", tmp_path / "none.json", code=2)
    assert "goes on in" in terminal.errors
    assert terminal("verify", run, again).count("holds") == 2
    found = {receipt.client: receipt for receipt in Run.load(again).receipts()}
    assert found["oslo"].charged["promised_epsilon"] == 6.0
    assert 5.9 < found["oslo"].total_epsilon <= 6.0
    assert found["narvik"].charged is None
    (tmp_path / "b.json").unlink()
    given = ["--range", "age=0:320", "--share", 0.25, "-o", tmp_path / "b.json"]
    terminal("data", "bounds", write_without(clinics), *given)
    terminal("train", clinics, "--plan", plan, "--after", run, "--out", tmp_path / "C", code=2)
    assert "the plan does not know what it took" in terminal.errors

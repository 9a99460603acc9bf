# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pytest

from dpcohort.accounting._charges import read_charge
from dpcohort.data import _private_bounds as private_bounds


@pytest.fixture(autouse=True)
def _nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOHORT_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_list_says_what_is_here_and_how_to_get_the_rest(terminal):
    shown = terminal("data", "list")
    for words in ("digits", "embedded", "mnist", "cifar10"):
        assert words in shown
    found = {row["name"]: row for row in terminal.json("data", "list")}
    assert found["digits"]["train_records"] == 1442
    assert found["cifar10"]["how_to_get"] or found["cifar10"]["found"]


def test_checking_ones_own_arrays(terminal, tmp_path):
    path = tmp_path / "mine.npz"
    arrays = {"train_inputs": np.zeros((6, 3)), "train_labels": [0, 1, 2] * 2}
    arrays |= {"test_inputs": np.zeros((3, 3)), "test_labels": [0, 1, 2]}
    np.savez(path, **arrays)
    shown = terminal("data", "check", path)
    assert "6 training and 3 test records of shape 3, 3 classes" in shown
    assert terminal.json("data", "check", path)["train_records"] == 6
    np.savez(path, **{**arrays, "train_labels": [0, 1]})
    terminal("data", "check", path, code=2)
    terminal("data", "check", tmp_path / "gone.npz", code=3)


def test_the_embedded_set_can_be_checked_too(terminal):
    assert "1,442 training" in terminal("data", "check", "digits")


def test_checking_broken_files(terminal, tmp_path):
    folder = tmp_path / "some" / "mnist"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"broken")
    shown = terminal("data", "check", "mnist", "--data-dir", tmp_path / "some", code=2)
    assert "corrupt" in shown
    assert "missing" in shown
    assert "dpcohort data fetch mnist" in terminal.errors


def test_bounds_are_estimated_once_and_paid_for(terminal, tmp_path):
    rows = [f"{20 + k % 40},{'ab'[k % 2]},{k % 3 == 0}" for k in range(900)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ward,sick", *rows]))
    (tmp_path / "c.csv").write_text("id,epsilon,delta\na,4,1e-5\nb,8,1e-5\n")
    config = tmp_path / "my.toml"
    config.write_text(
        'population = { clients = "c.csv" }\ntraining = { rounds = 3, cohort_size = 2 }\n'
        'data = { name = "t.csv", label = "sick", labels = [false, true], client = "ward" }\n'
        "evaluation = { share = 0.05 }\n"
    )
    terminal("plan", config, code=2)
    assert "dpcohort data bounds" in terminal.errors
    command = ("data", "bounds", config, "--range", "age=0:320", "-o", tmp_path / "b.json")
    assert "NOT PRIVATE" in terminal(*command[:-1], tmp_path / "s.json", "--simulate", 0)
    (tmp_path / "s.json").unlink()
    said = terminal(*command)
    assert "NOT PRIVATE" not in said
    assert 'estimated_bounds = "b.json"' in said
    found = terminal("plan", config, "--set", "data.estimated_bounds=b.json")
    assert "budgets ε 3.42 to 6.84 (besides 5 % for the evaluation)" in found
    assert "goes on" not in found
    before = (tmp_path / "b.json").read_text()
    terminal(*command, code=2)
    assert "was paid for" in terminal.errors
    assert (tmp_path / "b.json").read_text() == before
    for option, words in (("age", "its public range"), ("agee=0:9", "Did you mean 'age'")):
        terminal("data", "bounds", config, "--range", option, "-o", tmp_path / "n.json", code=2)
        assert words in terminal.errors


@pytest.fixture
def wards(tmp_path):
    """A config with a table of two wards, tuned as quickly as can be."""
    rows = [f"{20 + k % 40},{'ab'[k % 2]},{k % 3 == 0}" for k in range(300)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ward,sick", *rows]))
    (tmp_path / "c.csv").write_text("id,epsilon,delta\na,4,1e-5\nb,8,1e-5\n")
    config = tmp_path / "my.toml"
    config.write_text(
        '[population]\nclients = "c.csv"\n[training]\nrounds = 2\ncohort_size = 2\n'
        '[data]\nname = "t.csv"\nlabel = "sick"\nlabels = [false, true]\nclient = "ward"\n'
        "[data.bounds]\nage = [0, 99]\n"
        '[selection]\nrule = "unbiased"\n[run]\ndevice = "cpu"\n[evaluation]\nask = false\n'
    )
    return config


def estimate(terminal, config, out, share):
    given = ["--range", "age=0:320", "--share", share, "-o", out]
    terminal("data", "bounds", config, *given)
    return ["--set", f"data.estimated_bounds={out.name}"]


def tune(terminal, config, out, share, *more):
    given = ["--source", "charged", "--share", share, "--trials", 1.1, "--rounds", 1]
    terminal("tune", config, "-o", out, *given, "--device", "cpu", *more)


@contextmanager
def nowhere_near(*files):
    """Charges that lie in another folder meanwhile, as those of another machine do."""
    for file in files:
        file.rename(file.with_suffix(".away"))
    yield
    for file in files:
        file.with_suffix(".away").rename(file)


def test_nothing_is_spent_beside_a_charge_that_the_config_does_not_name(terminal, wards, tmp_path):
    estimate(terminal, wards, tmp_path / "b.json", 0.25)
    tuned = tmp_path / "tuned.toml"
    for command in (
        ["tune", wards, "-o", tuned, "--source", "charged"],
        ["train", wards, "--out", tmp_path / "A"],
        ["data", "bounds", wards, "--range", "age=0:320", "-o", tmp_path / "c.json"],
    ):
        terminal(*command, code=2)
        assert "b.json: the charge estimate" in terminal.errors
        assert "the config does not name it" in terminal.errors
        assert "Nothing was spent now" in terminal.errors
    assert not tuned.exists()
    # A file that was tuned already and is replaced would forget what the first tuning took.
    both = ["--set", "data.estimated_bounds=b.json"]
    tune(terminal, wards, tuned, 0.5, *both)
    again = ["tune", wards, "-o", tuned, "--source", "charged", "--force", *both]
    terminal(*again, code=2)
    assert "tuned-" in terminal.errors
    terminal("train", tuned, "--out", tmp_path / "A")


TOO_MUCH, NO_ORDER = (0.6, 4, "2 clients have nothing left"), (0.3, 2, "knowing of the other")


@pytest.mark.parametrize("tuned_first", [True, False])
@pytest.mark.parametrize(("share", "code", "words"), [TOO_MUCH, NO_ORDER])
def test_two_charges_of_the_whole_budget_are_not_planned_with_as_if_one_knew_the_other(
    terminal, wards, tmp_path, tuned_first, share, code, words
):
    tuned, bounds = tmp_path / "tuned.toml", tmp_path / "b.json"
    if tuned_first:
        tune(terminal, wards, tuned, share)
        with nowhere_near(*tmp_path.glob("*.charge.json")):
            both = estimate(terminal, wards, bounds, share)
    else:
        both = estimate(terminal, wards, bounds, share)
        with nowhere_near(bounds):
            tune(terminal, wards, tuned, share)
    for command in (["plan", tuned], ["train", tuned, "--out", tmp_path / "A"]):
        terminal(*command, *both, code=code)
        assert words in terminal.errors
    assert not (tmp_path / "A").exists()
    (charge,) = tmp_path.glob("*.charge.json")
    assert f"tuning {read_charge(charge)[0].id[:8]}" in terminal.errors


@pytest.mark.parametrize("tuned_first", [True, False])
def test_charges_that_know_of_each_other_are_added(terminal, wards, tmp_path, tuned_first):
    tuned, bounds, run = tmp_path / "tuned.toml", tmp_path / "b.json", tmp_path / "A"
    if tuned_first:
        tune(terminal, wards, tuned, 0.5)
        both = estimate(terminal, tuned, bounds, 0.25)
    else:
        both = estimate(terminal, wards, bounds, 0.25)
        tune(terminal, wards, tuned, 0.5, *both)
        assert "b.json" in tuned.read_text()
    terminal("train", tuned, *both, "--out", run)
    terminal("verify", run)
    receipt = json.loads(next((run / "receipts").glob("*-b.json")).read_text())
    paid = [(one["what"], one["epsilon"]) for one in receipt["charged"]["paid"]]
    assert paid == ([("tuning", 4.0), ("estimate", 1.0)] if tuned_first
                    else [("estimate", 2.0), ("tuning", 3.0)])  # fmt: skip
    assert receipt["promised_epsilon"] == 3.0
    assert sum(epsilon for _, epsilon in paid) <= receipt["total_epsilon"] <= 8.0
    assert receipt["total_delta"] <= 1e-5


def test_an_estimate_that_is_killed_has_written_what_it_pays(
    terminal, wards, tmp_path, monkeypatch
):
    def killed(*_):
        raise SystemExit(137)

    monkeypatch.setattr(private_bounds, "discrete_laplace", killed)
    out = tmp_path / "b.json"
    terminal("data", "bounds", wards, "--range", "age=0:320", "-o", out, code=137)
    charge, result = read_charge(out)
    assert (charge.spent["a"], result) == ((0.4, 0.0), {})
    terminal("plan", wards, "--set", "data.estimated_bounds=b.json", code=2)
    assert f"{charge.id} = " in terminal.errors
    assert "budgets ε 3.6 to 7.2" in terminal("plan", wards, "--set", f"charges.{charge.id}=b.json")
    terminal("data", "bounds", wards, "--range", "age=0:320", "-o", "-", code=2)
    assert "--out names the file that says so" in terminal.errors

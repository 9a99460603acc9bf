# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import tomllib

import pytest

from dpcohort.accounting._charges import read_charge
from dpcohort.config import commented_config
from dpcohort.tuning import PROBLEMS, tune, worth

FEW = ["--seeds", 1, "--rounds", 2, "--device", "cpu"]


@pytest.fixture(autouse=True)
def _one_stand_in(monkeypatch):
    for command in (tune, worth):
        monkeypatch.setitem(command.__kwdefaults__, "problems", PROBLEMS[:1])


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "my.toml"
    text = commented_config("digits").replace("rounds = 100 ", "rounds = 3 ")
    path.write_text(text.replace("sampling_rate = 0.1  ", "sampling_rate = 1.0  "))
    return path


def test_from_tune_to_a_receipt_that_names_the_source(terminal, mine, tmp_path):
    tuned, run = tmp_path / "tuned.toml", tmp_path / "run"
    out = terminal("tune", mine, "-o", tuned, *FEW)
    assert "no record was looked at, nothing was spent" in out
    assert "dpcohort train" in out
    text = tuned.read_text()
    assert tomllib.loads(text)["tuning"] == {"source": "none"}
    assert "(tuned; was 3)" in text
    assert all(line in text for line in mine.read_text().splitlines() if line.startswith("#"))
    terminal("train", tuned, "--out", run, "--device", "cpu")
    assert json.loads((run / "run.json").read_text())["tuning"] == {"source": "none"}
    receipt = json.loads(next((run / "receipts").glob("*.json")).read_text())
    assert receipt["tuning"] == {"source": "none"}
    assert "settings   from generated stand-in data" in terminal("receipt", run, receipt["client"])
    assert "holds" in terminal("verify", run)


def test_charged_tuning_is_written_with_what_it_spent(terminal, mine, tmp_path):
    tuned, run = tmp_path / "tuned.toml", tmp_path / "run"
    spend = ["--source", "charged", "--share", 0.3, "--trials", 1.5]
    out = terminal("tune", mine, "-o", tuned, *spend, "--rounds", 2, "--device", "cpu")
    assert "Every client paid for it" in out
    assert "NOT PRIVATE (simulated tuning)" in out
    found = tomllib.loads(tuned.read_text())
    ((name, place),) = found["charges"].items()
    assert found["tuning"] == {"source": "charged", "charge": name}
    charge, _ = read_charge(tmp_path / place)
    terminal("train", tuned, "--out", run, "--device", "cpu")
    receipt = json.loads(next((run / "receipts").glob("*.json")).read_text())
    whole = receipt["charged"]["promised_epsilon"]
    assert receipt["promised_epsilon"] == pytest.approx(0.7 * whole)
    assert receipt["charged"]["paid"][0]["epsilon"] == charge.spent[receipt["client"]][0]
    assert f"on tuning ({name[:8]})" in terminal("receipt", run, receipt["client"])
    terminal("verify", run)
    # Once more, with or without looking at records: what was paid is not lost.
    again, free = tmp_path / "again.toml", tmp_path / "free.toml"
    terminal("tune", tuned, "-o", again, *spend, "--rounds", 2, "--device", "cpu")
    both = tomllib.loads(again.read_text())["charges"]
    assert len(both) == 2
    assert both[name] == place
    second, _ = read_charge(tmp_path / next(both[one] for one in both if one != name))
    assert second.after == (name,)
    assert second.spent[receipt["client"]][0] == pytest.approx(0.3 * 0.7 * whole)
    terminal("tune", again, "-o", free, *FEW)
    values = tomllib.loads(free.read_text())
    assert (values["tuning"], values["charges"]) == ({"source": "none"}, both)
    terminal("tune", mine, "-o", "-", *spend, code=2)
    assert "charged tuning is paid for" in terminal.errors


def test_tuning_that_is_killed_has_written_what_it_pays(terminal, mine, tmp_path, monkeypatch):
    from dpcohort.tuning import _charged as charged

    tuned = tmp_path / "tuned.toml"

    def killed(job):
        raise SystemExit(137)

    monkeypatch.setattr(charged, "train_job", killed)
    spend = ["--source", "charged", "--share", 0.3, "--trials", 1.5]
    terminal("tune", mine, "-o", tuned, *spend, "--rounds", 2, "--device", "cpu", code=137)
    ((name, place),) = tomllib.loads(tuned.read_text())["charges"].items()
    charge, result = read_charge(tmp_path / place)
    assert (charge.id, charge.what, result) == (name, "tuning", {})
    left = terminal.json("plan", tuned)
    assert left


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--source", "publc"], "Did you mean 'public'"),
        (["--source", "public"], "--public test"),
        (["--share", 0.2], "go with --source charged"),
        (["--public", "test"], "goes with --source public"),
        (["--source", "charged", "--share", 1.0], "share = 1.0 is not allowed"),
        (["--source", "charged", "--trials", 1], "trials = 1.0 is not allowed"),
    ],
)
def test_what_does_not_go_together_is_refused_and_nothing_is_written(
    terminal, mine, tmp_path, given, words
):
    terminal("tune", mine, "-o", tmp_path / "out.toml", *given, code=2)
    assert words in terminal.errors
    assert not (tmp_path / "out.toml").exists()


def test_a_file_is_not_replaced_unless_asked(terminal, mine, config):
    terminal("tune", mine, "-o", mine, code=2)
    assert "--force" in terminal.errors
    terminal("tune", config, "-o", "-", code=2)
    assert "no [data]" in terminal.errors


def test_worth_says_what_budgets_buy(terminal, mine, tmp_path):
    few = ["--factor", 4, "--seeds", 1, "--device", "cpu"]
    picture = tmp_path / "worth.png"
    out = terminal("worth", mine, "--target", 0.99, "--figure", picture, *few)
    assert "Who should raise epsilon first" in out
    assert "For 99% on clear: more than 4 times every epsilon" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = terminal.json("worth", mine, *few, "-o", tmp_path / "worth.json")
    assert json.loads((tmp_path / "worth.json").read_text()) == found
    assert [point["factor"] for point in found["factors"]] == [1.0, 4.0]
    assert found["gains"][0]["noise"] < 1
    assert "drawn" in out
    distributed = terminal("worth", mine, "--set", "privacy.trust=distributed", *few)
    assert "weight" in distributed
    assert "drawn" not in distributed
    terminal("worth", mine, "--target", 80, code=2)
    assert "--target" in terminal.errors

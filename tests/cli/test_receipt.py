# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from dpcohort import Population, Training, load_dataset, make_plan
from dpcohort.accounting import Contract, Event, History, attack_risk
from dpcohort.runs import Run, train

SCHEMAS = Path(__file__).parents[1] / "report"


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


def test_a_letter_says_what_the_certificate_says(terminal, run, tmp_path):
    page = tmp_path / "letter.html"
    receipt = terminal.json("receipt", run, "b", "--letter", page, "--draft")
    steps = Event.of(
        noise_multiplier=receipt["noise_multiplier"],
        sampling_rate=receipt["sampling_rate"],
        steps=receipt["spent_steps"],
    )
    risk = attack_risk(History((steps,)), delta=1e-5)
    text = page.read_text()
    for alpha in (0.01, 0.05):
        # A bound is rounded up.
        assert f"<strong>{math.ceil(1000 * risk.hits(alpha)) / 10:.1f} %</strong>" in text
    assert f"µ = {math.ceil(1e4 * risk.mu) / 1e4:.4f}" in text
    assert f"dpcohort verify {run}" in text
    # A simulation is never passed off as a promise kept.
    assert 'data-watermark="DRAFT · NOT PRIVATE (SIMULATION)"' in text
    assert "The promise was kept" not in text
    assert terminal("receipt", run, "b").startswith("b   NOT PRIVATE (SIMULATION)\n")
    page.unlink()
    terminal("receipt", run, "b", "--letter", page, code=2)
    assert "--draft" in terminal.errors
    assert not page.exists()


def test_the_letter_of_a_distributed_run_has_rates_with_and_without_the_others(terminal, tmp_path):
    clients = Population.from_arrays(
        ids=["a", "b"], sizes=[600] * 2, epsilon=[1.0, 2.0], delta=1e-5
    )
    settings = Training(rounds=2, cohort_size=2, sampling_rate=0.1, dimension=650)
    plan = make_plan(clients, settings, seed=0, accountant=Contract(trust="distributed"))
    train(plan, "logistic", "digits", out=tmp_path / "run", device="cpu")
    terminal("receipt", tmp_path / "run", "b", "--letter", tmp_path / "letter.html", "--draft")
    text = (tmp_path / "letter.html").read_text()
    draws = int(plan.counts[1])
    rates = [
        attack_risk(one.charged_history(1, draws=draws), delta=1e-5).hits(0.05)
        for one in (plan, plan.if_alone)
    ]
    assert rates[0] < rates[1]
    assert f"<strong>{math.ceil(1000 * rates[0]) / 10:.1f} %</strong>" in text
    assert f">{math.ceil(1000 * rates[1]) / 10:.1f} %</td>" in text


def test_the_letter_of_a_private_run(terminal, run, tmp_path):
    plan = Run.load(run).plan
    out, page = tmp_path / "private", tmp_path / "letter.html"
    train(plan, "logistic", replace(load_dataset("digits"), public=False), out=out, device="cpu")
    assert terminal("receipt", out, "b", "--letter", page).startswith("b\n")
    text = " ".join(page.read_text().split())
    assert "The promise was kept" in text
    assert "NOT PRIVATE" not in text
    assert "data-watermark=" not in text
    assert "cannot be computed again by anybody" in text
    assert '<th>the operator</th><td class="wide">that batches and noise were drawn' in text
    assert json.loads((out / "result.json").read_text())["seal"] in text


def test_a_draft_for_the_registry_of_deployments(terminal, run, tmp_path):
    out, page = tmp_path / "private", tmp_path / "entry.yaml"
    terminal("receipt", run, "b", "--registry", page, code=2)
    assert "this run is a simulation" in terminal.errors
    assert not page.exists()
    secret = replace(load_dataset("digits"), public=False)
    train(Run.load(run).plan, "logistic", secret, out=out, device="cpu")
    assert "TO BE FILLED IN" in terminal("receipt", out, "b", "--registry", page)
    entry = json.loads(page.read_text())
    schema = json.loads((SCHEMAS / "deployments-registry.schema.json").read_text())
    Draft7Validator(schema, format_checker=Draft7Validator.FORMAT_CHECKER).validate(
        yaml.safe_load(page.read_text())  # as the registry reads it
    )
    loss = entry["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 5.0, "delta": 1e-5}
    assert loss["privacy_unit"] == terminal.json("receipt", out, "b")["unit"]
    assert entry["deployment"]["deployment_model"]["model_name"] == "Central"  # one machine
    (out / "model.safetensors").write_bytes(b"")
    page.unlink()
    terminal("receipt", out, "b", "--registry", page, code=1)
    assert not page.exists()


def test_a_letter_and_a_report_do_not_repeat_what_was_changed(terminal, run, tmp_path):
    """Only the seal covers the metrics, as nothing else in the folder follows from them."""
    path, page = run / "result.json", tmp_path / "letter.html"
    said = json.loads(path.read_text())
    said["metrics"]["accuracy"] = said["check"]["value"] = 0.999
    path.write_text(json.dumps(said))
    shown = terminal("receipt", run, "b", "--letter", page, "--draft", code=1)
    assert "result.json: it was changed after it was written" in shown
    text = " ".join(page.read_text().partition("<body")[2].split())
    assert "The run's files do not fit together." in text
    assert "was kept" not in text
    assert "Run privately" not in text
    report = json.loads(terminal("report", run, "--out", page, "--json", code=1))
    assert report["headline"].startswith("unbiased: its files do not fit together, so no result")
    assert "99.9" not in report["headline"]


def test_a_letter_that_cannot_be_written(terminal, run, tmp_path):
    terminal("receipt", run, "b", "--letter", tmp_path / "no" / "letter.html", "--draft", code=2)
    assert "there is no folder" in terminal.errors
    terminal("receipt", run, "b", "--letter", tmp_path, "--draft", code=2)
    assert "is a folder" in terminal.errors
    terminal("receipt", run, "c", "--letter", tmp_path / "letter.html", code=2)
    assert not (tmp_path / "letter.html").exists()


def test_letters_of_all_clients_are_written_at_once(terminal, run, tmp_path):
    terminal("receipt", run, "--letters", tmp_path / "letters", code=2)  # a simulation
    assert not (tmp_path / "letters").exists()
    assert "2 letters" in terminal("receipt", run, "--letters", tmp_path / "letters", "--draft")
    names = sorted(path.name for path in (tmp_path / "letters").iterdir())
    assert names == ["0-%5Bred%5Da%5B%2Fred%5D.html", "1-b.html"]
    assert "epsilon" in (tmp_path / "letters" / "1-b.html").read_text()
    for wrong in ([], ["b", "--letters", tmp_path / "more"], ["--letters", tmp_path / "letters"]):
        terminal("receipt", run, *wrong, code=2)

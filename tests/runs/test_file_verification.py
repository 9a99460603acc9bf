# SPDX-License-Identifier: Apache-2.0
"""A run whose files were touched afterwards; each touch is found, and nothing without one."""

from __future__ import annotations

import json

import pytest

from dpcohort import Population, Training, make_plan, verify_run
from dpcohort.config import commented_config, loads_config
from dpcohort.runs import configured_job, train
from dpcohort.runs._training import train_job


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = loads_config(commented_config("digits")).with_overrides(
        ["training.rounds=3", "training.cohort_size=2"]
    )
    place = tmp_path_factory.mktemp("runs") / "run"
    train_job(configured_job(config, device="cpu"), out=place)
    return place


@pytest.fixture
def run(finished, tmp_path):
    copy = tmp_path / "run"
    for path in finished.rglob("*"):
        if path.is_file():
            place = copy / path.relative_to(finished)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return copy


def _edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _subjects(run):
    return {finding.subject for finding in verify_run(run).findings if finding.kind != "note"}


def test_an_untouched_run_holds(run):
    assert verify_run(run).holds


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(seed=99),
        lambda s: s["optimiser"].update(server_learning_rate=7.0),
        lambda s: s["model"].update(name="another"),
        lambda s: s.pop("seed"),
    ],
    ids=["seed", "optimiser", "model", "seed gone"],
)
def test_edited_settings_are_found(run, change):
    _edit(run / "run.json", change)
    assert "run.json" in _subjects(run)


def test_a_label_that_a_report_shows_stays(run):
    _edit(run / "run.json", lambda s: s.update(label="renamed"))
    assert _subjects(run) == {"run.json"}


def test_an_edited_config_is_found(run):
    path = run / "config.toml"
    path.write_text(path.read_text().replace("seed = ", "seed = 1"))
    assert "config.toml" in _subjects(run)
    path.unlink()
    assert "config.toml" in _subjects(run)


def test_hashes_cannot_be_left_out(run):
    _edit(run / "result.json", lambda r: r["sha256"].pop("run.json"))
    assert "run.json" in _subjects(run)
    _edit(run / "result.json", lambda r: r.update(sha256=None))
    assert {"run.json", "model.safetensors", "config.toml"} <= _subjects(run)


def test_a_run_without_a_config_needs_none(tmp_path):
    clients = Population.from_arrays(sizes=[300] * 2, epsilon=[1.0, 4.0], delta=1e-5)
    plan = make_plan(
        clients, Training(rounds=2, cohort_size=2, batch_size=30, dimension=650), seed=0
    )
    train(plan, "logistic", "digits", device="cpu", out=tmp_path / "run")
    assert verify_run(tmp_path / "run").holds
    (tmp_path / "run" / "config.toml").write_text("[run]\nseed = 3\n")
    assert "config.toml" in _subjects(tmp_path / "run")


def test_an_unfinished_run_is_held_to_its_checkpoints(run):
    (run / "result.json").unlink()
    for name in ("model.safetensors", "model-average.safetensors"):
        (run / name).unlink(missing_ok=True)
    assert verify_run(run).holds
    _edit(run / "run.json", lambda s: s.update(seed=99))
    assert "run.json" in _subjects(run)


@pytest.mark.parametrize("better", [0.99, None], ids=["another number", "none"])
def test_test_results_that_no_round_had_are_found(run, better):
    _edit(run / "result.json", lambda r: r["test"].update(accuracy=better))
    assert _subjects(run) == {"result.json"}
    _edit(run / "result.json", lambda r: r.pop("test"))
    assert _subjects(run) == {"result.json"}

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from dpcohort.config import commented_config


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "heart.toml"
    path.write_text(commented_config("heart-disease"))
    return path


SHORT = ["--set", "training.rounds=3", "--device", "cpu"]


def _held(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_personal_models_change_nothing_of_the_run(terminal, config, tmp_path):
    out = tmp_path / "run"
    terminal("train", config, "--out", out, *SHORT)
    before = _held(out)
    shown = terminal("personal", out, "--steps", 5, "--device", "cpu")
    assert "personal" in shown
    assert "SIMULATION ONLY" in shown
    after = _held(out)
    kept = json.loads(after.pop(out / "personal.json"))
    assert after == before
    assert set(kept["clients"]) == {"cleveland", "hungarian", "switzerland", "va"}
    terminal("verify", out)


def test_it_is_what_the_training_in_memory_gives(terminal, config, tmp_path):
    from dpcohort.config import load_config
    from dpcohort.runs import configured_job, train_side_by_side
    from dpcohort_lab.personal import personal_results

    out, seeds = tmp_path / "runs", ["--seeds", 2]
    terminal("train", config, "--out", out, *seeds, *SHORT)
    found = terminal.json("personal", out, "--steps", 5, "--pull", 0.1, "--device", "cpu")
    asked = load_config(config).with_overrides(["training.rounds=3"])
    jobs = [configured_job(asked, shift=shift, device="cpu") for shift in range(2)]
    for job, one in zip(jobs, found["personal"], strict=True):
        (run,) = train_side_by_side([job])
        assert one == personal_results(job, run, steps=5, pull=0.1)


def test_a_private_run_tells_nothing_of_personal_models(terminal, config, tmp_path):
    out = tmp_path / "run"
    terminal("train", config, "--out", out, "--set", "data.public=false", *SHORT)
    before = _held(out)
    assert terminal("personal", out, code=2) == ""
    assert "neither it nor how good it is may leave the client" in " ".join(terminal.errors.split())
    assert _held(out) == before


def test_a_run_without_a_config_says_what_to_do(terminal, tmp_path):
    from dpcohort import Population, Training, make_plan, train

    clients = Population.from_arrays(sizes=[240] * 3, epsilon=[1, 4, 8], delta=1e-5)
    settings = Training(rounds=2, cohort_size=2, batch_size=60, dimension=650)
    plan = make_plan(clients, settings, seed=1)
    train(plan, "logistic", "digits", seed=1, device="cpu", out=tmp_path / "run")
    terminal("personal", tmp_path / "run", code=2)
    assert "no config.toml" in terminal.errors

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from dpcohort.config import commented_config


def test_train_personal_changes_nothing_that_is_released(terminal, tmp_path):
    config = tmp_path / "heart.toml"
    config.write_text(commented_config("heart-disease"))
    short = ["--set", "training.rounds=3", "--set", "personal.steps=5", "--device", "cpu"]
    terminal("train", config, "--out", tmp_path / "plain", *short)
    shown = terminal("train", config, "--out", tmp_path / "own", "--personal", *short)
    assert "personal" in shown
    assert "SIMULATION ONLY" in shown
    files = {p.relative_to(tmp_path / "own") for p in (tmp_path / "own").rglob("*")}
    before = {p.relative_to(tmp_path / "plain") for p in (tmp_path / "plain").rglob("*")}
    assert {str(name) for name in files - before} == {"personal.json"}
    for name in before:
        same = (tmp_path / "plain" / name, tmp_path / "own" / name)
        if name.name in ("plan.json", "ledger.jsonl", "run.json") or "receipts" in name.parts:
            assert all(p.is_dir() for p in same) or same[0].read_bytes() == same[1].read_bytes()
        if name.suffix == ".safetensors":
            assert same[0].read_bytes() == same[1].read_bytes()
    kept = json.loads((tmp_path / "own" / "personal.json").read_text())
    assert set(kept["clients"]) == {"cleveland", "hungarian", "switzerland", "va"}
    terminal("verify", tmp_path / "own")


def test_a_private_run_tells_nothing_of_personal_models(terminal, tmp_path):
    config, out = tmp_path / "heart.toml", tmp_path / "run"
    config.write_text(commented_config("heart-disease"))
    short = ["--set", "training.rounds=2", "--device", "cpu", "--private-entropy"]
    found = terminal.json("train", config, "--out", out, "--personal", *short)
    assert list(found["personal"]) == ["withheld"]
    assert not (out / "personal.json").exists()
    shown = terminal("train", config, "--out", tmp_path / "b", "--personal", *short)
    assert "neither it nor how good it is may leave the client" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("personal.pull=-0.1", "personal.pull = -0.1"),
        ("personal.pull=strong", "personal.pull = 'strong'"),
        ("personal.steps=0", "personal.steps = 0"),
        ("personal.method=mr-mtl", "personal.method"),
        ("personal.puls=1", "Did you mean 'pull'"),
    ],
)
def test_bad_settings_name_the_key(terminal, tmp_path, change, words):
    config, out = tmp_path / "heart.toml", tmp_path / "run"
    config.write_text(commented_config("heart-disease"))
    terminal("train", config, "--out", out, "--personal", "--set", change, code=2)
    assert words in " ".join(terminal.errors.split())
    assert not out.exists()

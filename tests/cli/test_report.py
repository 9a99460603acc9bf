# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from dpcohort.config import commented_config

SHORT = [
    *("--set", "population.count=4"),
    *("--set", "training.rounds=4"),
    *("--set", "training.cohort_size=3"),
    *("--device", "cpu"),
]


@pytest.fixture
def run(terminal, tmp_path):
    config = tmp_path / "digits.toml"
    config.write_text(commented_config("digits"))
    terminal("train", config, "--out", tmp_path / "run", *SHORT)
    return tmp_path / "run"


def test_a_run_becomes_a_page(terminal, run, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    out = tmp_path / "page.html"
    shown = terminal("report", run, "-o", out, "--open")
    assert "every promise verified" in " ".join(shown.split())
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert opened == [out.resolve().as_uri()]
    (run / "environment.json").unlink()
    found = json.loads(terminal("report", run, "-o", out, "--json", code=1))
    assert found["kind"] == "run"
    assert [problem["kind"] for problem in found["problems"]] == ["broken", "note"]


def test_a_broken_run_is_reported_all_the_same(terminal, run, tmp_path):
    values = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**values, "schema": 7}))
    shown = " ".join(terminal("report", run, "-o", tmp_path / "page.html", code=1).split())
    assert "could NOT be verified" in shown
    assert "test accuracy" not in shown.partition("Wrote")[0]
    assert "schema 7" in shown


def test_where_there_is_no_run_nothing_is_written(terminal, tmp_path):
    out = tmp_path / "page.html"
    for source, code in ((tmp_path / "gone", 3), (tmp_path, 3), (tmp_path / "gone.json", 2)):
        terminal("report", source, "-o", out, code=code)
        assert "dpcohort" in terminal.errors
    assert not out.exists()

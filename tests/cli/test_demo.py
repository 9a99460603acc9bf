# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dpcohort.plan import Plan


def test_the_demo_shows_a_plan_and_leaves_its_files(terminal, tmp_path):
    shown = terminal("demo", "--out", tmp_path / "demo")
    assert "promises certified" in shown
    assert "plan.json" in shown
    Plan.load(tmp_path / "demo" / "plan.json").verify(method="pld")
    assert (tmp_path / "demo" / "selection.png").read_bytes().startswith(b"\x89PNG")


def test_json_and_the_gap_to_unbiased(terminal, tmp_path):
    found = terminal.json("demo", "--out", tmp_path)
    assert found["against_unbiased"]["noise_ratio"] < 1


def test_a_folder_that_cannot_be_made(terminal, tmp_path):
    (tmp_path / "file").touch()
    terminal("demo", "--out", tmp_path / "file" / "x", code=2)
    assert "cannot be made" in terminal.errors

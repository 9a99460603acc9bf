# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.mark.parametrize("example", ["hospitals", "paper-mnist", "paper-cifar10", "paper-figure"])
def test_what_new_writes_can_be_planned(terminal, tmp_path, example):
    path = tmp_path / "a.toml"
    terminal("new", path, "--from", example)
    assert "promises certified" in terminal("plan", path, "--rounds", 5)


def test_an_existing_file_is_kept(terminal, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("mine")
    terminal("new", path, code=2)
    assert path.read_text() == "mine"
    assert "--force" in terminal.errors
    terminal("new", path, "--force")
    assert path.read_text() != "mine"


def test_to_the_terminal(terminal):
    assert "[training]" in terminal("new", "-")


def test_an_unknown_example_is_answered_with_the_nearest(terminal, tmp_path):
    terminal("new", tmp_path / "a.toml", "--from", "hospital", code=2)
    assert "hospitals" in terminal.errors


def test_json_names_the_file(terminal, tmp_path):
    found = terminal.json("new", tmp_path / "a.toml")
    assert found == {"path": str(tmp_path / "a.toml"), "example": "hospitals"}

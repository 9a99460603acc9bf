# SPDX-License-Identifier: Apache-2.0
"""Commands of other distributions, found by the entry-point group ``dpcohort.commands``."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

MODULE = """
import typer

app = typer.Typer()

@app.command()
def inner() -> None:
    print("inner runs")

@app.command()
def other() -> None:
    print("other runs")

def greet(name: str = "nobody") -> None:
    'Greet somebody.'
    print("hello", name)
"""


@pytest.fixture
def announce(tmp_path, monkeypatch):
    """``announce(greet="of_mine.commands:greet")``: an installed distribution with these."""

    def add(summary: str = "", **commands: str) -> None:
        info = tmp_path / "of_mine-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-mine\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in commands.items()]
        (info / "entry_points.txt").write_text("\n".join(["[dpcohort.commands]", *lines]))
        package = tmp_path / "of_mine"
        package.mkdir()
        (package / "__init__.py").write_text(summary)
        (package / "commands.py").write_text(MODULE)
        monkeypatch.syspath_prepend(tmp_path)

    yield add
    for name in [name for name in sys.modules if name.partition(".")[0] == "of_mine"]:
        del sys.modules[name]


def test_a_command_of_another_package_is_listed_and_runs(terminal, announce):
    announce("COMMANDS = {'greet': 'Say hello to somebody.'}", greet="of_mine.commands:greet")
    listed = terminal("--help")
    assert listed.index("Commands of of-mine") < listed.index("Say hello to somebody.")
    assert "of_mine.commands" not in sys.modules
    assert terminal("greet", "--name", "Ada") == "hello Ada\n"
    assert "Greet somebody." in terminal("greet", "--help")


def test_a_command_may_be_an_application(terminal, announce):
    announce(many="of_mine.commands:app")
    assert terminal("many", "inner") == "inner runs\n"


def test_a_name_of_ours_stays_ours(terminal, announce):
    announce(rules="of_mine.commands:greet")
    assert "hello" not in terminal("rules")
    assert "Commands of of-mine" not in terminal("--help")


@pytest.mark.parametrize("value", ["of_mine.missing:greet", "of_mine.commands:missing"])
def test_a_command_that_cannot_be_loaded_is_one_message(terminal, announce, value):
    announce(greet=value)
    assert terminal("greet", code=2) == ""
    assert f"the command 'greet' is announced as {value}, but loading" in terminal.errors
    assert "missing" in terminal.errors
    assert "greet" in terminal("--help")


@pytest.mark.parametrize(
    "name", ["bound", "compare-rules", "personal", "reproduce", "schemes", "search"]
)
def test_a_command_of_the_laboratory_says_where_it_is(terminal, name, monkeypatch):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints())
    for words in ([name], [name, "mnist", "--quick"], [name, "--help"]):
        assert terminal(*words, code=2) == ""
        told = f"error: {name} is part of dpcohort-lab: pip install dpcohort-lab\n"
        assert terminal.errors == told

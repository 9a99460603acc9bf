# SPDX-License-Identifier: Apache-2.0
"""The commands that the laboratory adds: announced, listed, and loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import typer.main

from dpcohort.cli import app, main, other_commands
from dpcohort_lab import COMMANDS

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_what_is_announced_is_what_is_installed():
    announced = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["dpcohort.commands"]
    assert list(announced) == list(COMMANDS)
    found = {name: entry.value for name, entry in other_commands().items()}
    assert found.items() >= announced.items(), "make setup installs the laboratory anew"


def test_the_list_says_what_the_commands_say(terminal):
    listed = terminal("--help")
    assert "Commands of dpcohort-lab" in listed
    for name, summary in COMMANDS.items():
        loaded = typer.main.get_command(app(name)).commands[name]
        assert loaded.help.splitlines()[0] == summary
        assert " ".join(summary.split()[:5]) in listed
        assert "Usage" in terminal(name, "--help")


LOADED = """
import sys
from dpcohort.cli import main
main(["--help"])
print("LOADED", *sys.modules)
"""


def test_the_list_loads_no_command():
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert not loaded & {"torch", "numpy", "scipy", "pydantic", "dpcohort_lab.cli"}


def test_an_interrupt_is_told_with_what_to_do_next(monkeypatch, capsys):
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpcohort_lab.cli.reproduce.load_recipe", interrupt)
    assert main(["reproduce", "mnist"]) == 130
    assert "the same command goes on where it was" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""What tests of several parts of the laboratory need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpcohort.cli import main

CLIENTS = """id,size,epsilon,delta,public
strict,600,0.3,1e-5,
middle,500,1.5,1e-5,no
open,400,6,1e-5,false
gift,300,,,yes
"""


class Terminal:
    """Runs a command in this process and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> str:
        self._capsys.readouterr()
        ended = main([str(a) for a in arguments])
        captured = self._capsys.readouterr()
        self.errors = captured.err
        assert ended == code, captured.err + captured.out
        assert "Traceback" not in captured.err
        return captured.out

    def json(self, *arguments: object) -> object:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def terminal(capsys):
    return Terminal(capsys)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "clients.csv").write_text(CLIENTS)
    path = tmp_path / "config.toml"
    path.write_text(
        '[population]\nclients = "clients.csv"\n'
        "[training]\nrounds = 20\ncohort_size = 3\nbatch_size = 50\n"
        "[schedule]\nseed = 7\n"
    )
    return path

# SPDX-License-Identifier: Apache-2.0
"""What tests of several parts of the laboratory need."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from dpcohort.cli import main

CLIENTS = """id,size,epsilon,delta,public
strict,600,0.3,1e-5,
middle,500,1.5,1e-5,no
open,400,6,1e-5,false
gift,300,,,yes
"""


@pytest.fixture(scope="session", autouse=True)
def _this_checkout_is_announced(tmp_path_factory):
    """The entry points of lab/pyproject.toml, also those that came after the installation."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    place = tmp_path_factory.mktemp("installed")
    info = place / "dpcohort_lab-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dpcohort-lab\nVersion: 0.1.0\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        yield


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

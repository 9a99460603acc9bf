# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from dpcohort.cli import _setting_up as setting_up


def test_what_is_missing_comes_with_its_command(terminal, monkeypatch):
    real = setting_up.importlib.metadata.version

    def version(name):
        if name == "torch":
            raise setting_up.importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(setting_up.importlib.metadata, "version", version)
    shown = terminal("doctor")
    assert "missing" in shown
    assert "dpcohort[train]" in shown


def test_every_extra_of_the_package_is_known(terminal):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [one for name in extras.keys() - {"docs", "test"} for one in extras[name]]
    names = {re.split(r"[<>=\[]", one)[0] for one in [*asked, *project["dependencies"]]}
    assert names - {"dpcohort"} <= {row["name"] for row in terminal.json("doctor")}


def test_it_imports_nothing_heavy(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it now would raise
    assert setting_up.examine()
    with pytest.raises(ImportError):
        import torch  # noqa: F401

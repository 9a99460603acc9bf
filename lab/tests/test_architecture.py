# SPDX-License-Identifier: Apache-2.0
"""The laboratory uses exported names of dpcohort only, and every module says what it is."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

import dpcohort
import dpcohort_lab

ROOT = Path(dpcohort_lab.__file__).parent
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_it_uses_exported_names_of_dpcohort_only(module):
    """A name of ``__all__`` of a package or a top-level module, imported from there."""
    offences = []
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            offences += [
                f"import {alias.name}: import its names instead"
                for alias in node.names
                if alias.name.startswith("dpcohort.")
            ]
        home = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if home.partition(".")[0] == "dpcohort":
            is_public = home.count(".") < 2 and "._" not in home
            exported = importlib.import_module(home).__all__ if is_public else []
            offences += [
                f"{alias.name} of {home} is not exported"
                for alias in node.names
                if alias.name not in exported
            ]
    assert offences == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_says_what_it_is_and_its_public_names_are_documented(module):
    text = (ROOT / module).read_text()
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert ast.get_docstring(ast.parse(text))
    name = ".".join(["dpcohort_lab", *module.with_suffix("").parts]).removesuffix(".__init__")
    loaded = importlib.import_module(name)
    for public in getattr(loaded, "__all__", []):
        value = getattr(loaded, public)
        ours = getattr(value, "__module__", "").startswith("dpcohort")
        assert value.__doc__ or not (callable(value) and ours), public


def test_it_is_of_the_version_of_dpcohort():
    assert dpcohort_lab.__version__ == dpcohort.__version__
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["dpcohort[train]>=" + dpcohort.__version__[:3]]

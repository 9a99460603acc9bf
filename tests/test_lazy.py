# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dpcohort

ROOT = Path(dpcohort.__file__).parent
LATE = [
    ".".join(["dpcohort", *path.parent.relative_to(ROOT).parts])
    for path in sorted(ROOT.rglob("__init__.py"))
    if "names_on_use(" in path.read_text()
]


@pytest.mark.parametrize("package", LATE)
def test_type_checkers_and_python_see_the_same_names(package):
    loaded = import_module(package)
    tree = ast.parse(Path(loaded.__file__).read_text())
    told = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname  # the others are for annotations
    }
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(told) == set(loaded.__all__) - own - {"__version__", "COMMANDS"}
    for name, home in told.items():
        assert getattr(loaded, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'no_such_name'"):
        _ = loaded.no_such_name
    assert dir(loaded) == sorted(loaded.__all__)


def test_importing_a_package_imports_none_of_its_modules():
    code = (
        f"import sys\nfor name in {LATE}: __import__(name)\n"
        "print(*[m for m in sys.modules if m.startswith('dpcohort.') or m == 'numpy'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = set(done.stdout.split())
    assert "dpcohort.accounting" in ours
    assert not ours & {
        "dpcohort.accounting._events",
        "dpcohort.config._settings",
        "dpcohort.data._load",
    }
    assert not ours & {
        "dpcohort.runs._run",
        "dpcohort.adaptive._planning",
        "dpcohort.deploy.flower._kit",
    }

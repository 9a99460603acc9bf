# SPDX-License-Identifier: Apache-2.0
"""The shape of the house: imports point backwards and every module says what it is."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import dpcohort

ROOT = Path(dpcohort.__file__).parent
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))

#: Rooms in the order data flows; a module may import from its own room and the ones before it.
ROOMS = [
    [
        "errors",
        "limits",
        "plain_text",
        "_lazy",
        "_validate",
        "_version",
        "atomic_file",
        "text_files",
        "progress",
        "signatures",
    ],
    ["consent"],
    ["plugins"],
    ["tasks", "metrics"],
    ["training", "clients"],
    ["accounting"],
    ["selection"],
    ["schedule"],
    ["round_record"],
    ["plan", "planning", "adaptive", "explain"],
    ["config"],
    ["data", "models"],
    ["aggregation", "engine"],
    ["runs"],
    ["tuning"],
    ["estimators"],
    ["deploy", "flower"],
    ["audit"],
    ["report"],
    ["cli", "__main__"],
]


def _room(name: str) -> int:
    for position, names in enumerate(ROOMS):
        if name in names or any(n.endswith("*") and name.startswith(n[:-1]) for n in names):
            return position
    raise AssertionError(f"dpcohort.{name} is in no room: add it to ROOMS where data reach it")


@cache
def _imported(path: Path) -> set[str]:
    """First parts of the dpcohort modules that a file imports when it is loaded or used."""
    tree = ast.parse(path.read_text())
    # Imports for type checkers only do not run.
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    parts = [name.split(".") for name in names if name.startswith("dpcohort.")]
    return {part[1] for part in parts}


def _none(offences: list[str]) -> None:
    assert not offences, "\n".join(["", *offences])


def test_imports_point_backwards():
    offences = []
    for module in (m for m in MODULES if m.name != "__init__.py"):
        own = module.parts[0].removesuffix(".py")
        ahead = sorted(name for name in _imported(ROOT / module) if _room(name) > _room(own))
        if ahead:
            offences.append(f"{module} imports from rooms ahead of it: {ahead}")
    _none(offences)


def test_the_core_knows_nothing_of_what_stands_on_it():
    """What one must know to change training are the rooms before ``deploy``."""
    offences = []
    for module in (m for m in MODULES if len(m.parts) > 1 or m.name != "__init__.py"):
        if _room(module.parts[0].removesuffix(".py")) >= _room("deploy"):
            continue
        outer = sorted(_imported(ROOT / module) & {"deploy"})
        if outer:
            offences.append(f"{module} imports {outer}: the core stands alone")
    _none(offences)


def test_the_product_knows_nothing_of_the_laboratory():
    """dpcohort-lab stands on dpcohort; its commands are found, not named by their modules."""
    offences = []
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [node.value] if isinstance(node, ast.Constant) else []
            offences += [f"{module}: {one}" for one in names if "dpcohort_lab" in str(one)]
    _none(offences)


def test_every_module_says_what_it_is():
    offences = []
    for module in MODULES:
        text = (ROOT / module).read_text()
        if not text.startswith("# SPDX-License-Identifier: Apache-2.0\n"):
            offences.append(f"{module} does not begin with the SPDX line")
        if not ast.get_docstring(ast.parse(text)):
            offences.append(f"{module} has no docstring")
        if module.stem in {"utils", "helpers", "common", "misc"}:
            offences.append(f"{module} is not named by a concept")
    _none(offences)


def test_public_names_exist_and_are_documented():
    offences = []
    for module in (m for m in MODULES if m.name != "__main__.py"):
        name = ".".join(["dpcohort", *module.with_suffix("").parts]).removesuffix(".__init__")
        loaded = importlib.import_module(name)
        for public in getattr(loaded, "__all__", []):
            if not hasattr(loaded, public):
                offences.append(f"{name}.__all__ names {public}, which is not there")
                continue
            value = getattr(loaded, public)
            ours = getattr(value, "__module__", "").startswith("dpcohort")
            if callable(value) and ours and not value.__doc__:
                offences.append(f"{name}.{public} has no docstring")
    _none(offences)


def test_package_names_are_what_all_says():
    assert len(set(dpcohort.__all__)) == len(dpcohort.__all__)
    assert {"__version__", "Plan", "make_plan"} <= set(dpcohort.__all__)
    assert set(dir(dpcohort)) == set(dpcohort.__all__)
    for name in dpcohort.__all__:
        assert getattr(dpcohort, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = dpcohort.no_such_name


PLAN_WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "flwr", "sklearn", "dp_accounting", "cvxpy"}:
            raise AssertionError(f"planning imported {name}")
sys.meta_path.insert(0, Refuse())
import dpcohort
for name in dpcohort.__all__:
    if name != "train":
        getattr(dpcohort, name)
from dpcohort.cli import main
rows = "".join(f"c{i},{500 + i},{0.1 + i / 20},1e-5\\n" for i in range(100))
open("clients.csv", "w").write("id,size,epsilon,delta\\n" + rows)
assert main(["plan", "--clients", "clients.csv", "--out", "plan.json", "--seed", "1"]) == 0
assert main(["explain", "c7", "plan.json"]) == 0
"""


def test_planning_never_imports_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLAN_WITHOUT_TORCH],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.json").exists()

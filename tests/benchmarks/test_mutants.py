# SPDX-License-Identifier: Apache-2.0
"""The list of mutants is up to date, the quickest of them is killed, and the judge is no fool."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Their tests import neither torch nor a data set.
FASTEST = ["draw-outside-the-hash"]


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def test_none_is_stale_and_every_test_is_there(mutants):
    found = mutants.read_mutants()
    assert len(found) >= 80
    assert [one.name for one in found if mutants.is_stale(one, ROOT)] == []
    assert [one.test for one in found if not mutants.is_test(one.test, ROOT)] == []


def test_the_fastest_mutant_is_killed(mutants):
    chosen = [one for one in mutants.read_mutants() if one.name in FASTEST]
    verdicts = mutants.judge_all(chosen, quiet=True)
    assert [one.outcome for one in verdicts] == ["killed"] * len(FASTEST), verdicts


TREE = {
    "rule.py": "def fits(spent, cap):\n    return spent <= cap\n",
    "tests/test_rule.py": "import rule\n\n\ndef test_it():\n    assert not rule.fits(2, 1)\n",
    "pyproject.toml": "[tool.pytest.ini_options]\n",
}
ENTRY = """\
[[mutant]]
name = "{name}"
file = "rule.py"
old = "{old}"
new = "{new}"
breaks = "nothing is overspent"
test = "{test}"
"""
CASES = {
    "killed": ("spent <= cap", "spent >= cap", "test_it"),
    "survived": ("spent <= cap", "spent < cap", "test_it"),
    "stale": ("spent is cap", "True", "test_it"),
    "unusable": ("spent <= cap", "spent <= (", "test_it"),
}


@pytest.fixture
def tree(tmp_path):
    for name, text in TREE.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    return tmp_path / "tree"


def test_each_outcome_is_told_apart_and_the_tree_is_left_alone(mutants, tree, tmp_path, capsys):
    listed = tmp_path / "list.toml"
    listed.write_text(
        "\n".join(
            ENTRY.format(name=name, old=old, new=new, test=f"tests/test_rule.py::{test}")
            for name, (old, new, test) in CASES.items()
        )
    )
    assert mutants.main(["--list", str(listed), "--root", str(tree)]) == 1
    said = capsys.readouterr().out
    for name in CASES:
        assert f"{name:9} " in said
    assert "1 killed, 1 survived, 1 stale, 1 unusable" in said
    assert {name: (tree / name).read_text() for name in TREE} == TREE
    assert mutants.main(["--list", str(listed), "--root", str(tree), "--check"]) == 1
    assert "stale: stale" in capsys.readouterr().out


def test_a_test_that_fails_anyway_kills_nothing(mutants, tree, tmp_path):
    (tree / "tests/test_rule.py").write_text("def test_it():\n    raise ValueError\n")
    listed = tmp_path / "list.toml"
    old, new, test = CASES["killed"]
    listed.write_text(ENTRY.format(name="x", old=old, new=new, test=f"tests/test_rule.py::{test}"))
    with pytest.raises(SystemExit, match="do not pass without a mutant"):
        mutants.main(["--list", str(listed), "--root", str(tree)])

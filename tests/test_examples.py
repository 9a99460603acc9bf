# SPDX-License-Identifier: Apache-2.0
"""The examples: short, and they run to their end without a warning."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.py"))
#: What is made smaller in a script that does the same many times over.
SMALLER = {
    "compare_rules": ("rounds=60", "rounds=5"),
    "audit_own_step": ("(textbook_step, False), (textbook_step, True), ", "*[], "),
}


def _name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("script", [*SCRIPTS, *NOTEBOOKS], ids=_name)
def test_it_runs_without_a_warning_and_says_something(
    script, tmp_path, tmp_path_factory, monkeypatch, capsys
):
    """Warnings are errors here; in this process, as a new one would load torch once more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    if script.stem in SMALLER:
        many, few = SMALLER[script.stem]
        assert many in script.read_text()
        smaller = tmp_path_factory.mktemp("smaller") / script.name
        smaller.write_text(script.read_text().replace(many, few))
        script = smaller
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=_name)
def test_a_script_is_a_notebook(notebook):
    jupytext = pytest.importorskip("jupytext")
    cells = jupytext.read(notebook)["cells"]
    kinds = [cell["cell_type"] for cell in cells if cell["source"].strip()]
    assert kinds.count("markdown") >= 3
    assert kinds.count("code") >= 3

# SPDX-License-Identifier: Apache-2.0
"""docs/results.md and results/summary.json hold no number that a result file does not hold."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpcohort_lab.recipes import load_recipe

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
NAMES = sorted(
    path.stem for path in RESULTS.glob("*.json") if not path.stem.startswith(("search-", "summary"))
)


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location(
        "results_page", ROOT / "benchmarks" / "results_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_and_summary_are_what_the_files_say():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "results_page.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_words_around_the_places_hold_no_measured_number():
    words = re.sub(r"\{\{.+?\}\}", "", (RESULTS / "page.md").read_text())
    assert not re.findall(r"\d+\.\d+ ?%|\d+\.\d+ points", words)


@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_that_of_the_recipe_as_it_stands(name):
    found = json.loads((RESULTS / f"{name}.json").read_text())
    recipe = load_recipe(name)
    assert found["form"] == "full"
    assert found["seeds"] == recipe.seeds >= 5 or not found["cells"]
    assert found["promises_hold"] is True
    assert found["recipe_sha256"] == recipe.sha256
    assert [cell["settings_sha256"] for cell in found["cells"]] == [c.sha256 for c in recipe.cells]
    for cell in found["cells"]:
        assert len(cell["accuracy"]) == recipe.seeds
        assert cell["mean"] == pytest.approx(sum(cell["accuracy"]) / recipe.seeds, abs=1e-3)


def test_the_summary_has_the_agreed_keys(page):
    for rows in page.summary().values():
        assert set(rows) <= {"100", "70", "30", "0"}
        for row in rows.values():
            known = {"paper", "paper_noise", "same_network", "open", "unbiased", "biased"}
            known |= {"pooled_10", "pooled_all", "pooled_all_half_colluding", "no_privacy"}
            assert set(row) <= known
            assert all(0 <= value <= 100 for value in row.values())


def test_a_changed_number_is_noticed(page, tmp_path, monkeypatch):
    if not NAMES:
        pytest.skip("no result files")
    copy = tmp_path / "results"
    copy.mkdir()
    for path in RESULTS.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(page, "RESULTS", copy)
    monkeypatch.setattr(page, "TEMPLATE", copy / "page.md")
    before = page.page()
    assert before == (ROOT / "docs" / "results.md").read_text()
    name = next(n for n in NAMES if json.loads((RESULTS / f"{n}.json").read_text())["cells"])
    values = json.loads((copy / f"{name}.json").read_text())
    for cell in values["cells"]:
        cell["mean"] += 7.7
    (copy / f"{name}.json").write_text(json.dumps(values))
    assert page.page() != before

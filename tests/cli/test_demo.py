# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from dpcohort.cli import main
from dpcohort.cli._demo import SETTINGS
from dpcohort.plan import Plan
from dpcohort.report.html._page import write_report
from dpcohort.runs import verify_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The demo as everyone sees it: all seeds, all rounds."""
    out, printed = tmp_path_factory.mktemp("demo"), StringIO()
    with redirect_stdout(printed):
        assert main(["demo", "--out", str(out), "--json"]) == 0
    (out / "printed.json").write_text(printed.getvalue())
    return out


def test_privacy_aware_beats_unbiased_outside_the_confidence_interval(whole):
    results = json.loads((whole / "results.json").read_text())
    by_pair = {(c["name"], c["baseline"]): c for c in results["comparisons"]}
    for noise in ("paper noise", "tight noise"):
        found = by_pair[(f"{noise}, privacy-aware", f"{noise}, unbiased")]
        assert found["difference_points"]["count"] == 5
        assert found["difference_points"]["low"] > 0
    tight = by_pair[("tight noise, privacy-aware", "paper noise, privacy-aware")]
    assert tight["difference_points"]["low"] > 0


def test_everything_it_names_is_there_and_holds(whole):
    results = json.loads((whole / "results.json").read_text())
    assert all(Path(name).exists() for name in results["files"])
    assert results["promises_hold"]
    Plan.load(whole / "plan.json").verify(method="pld")
    assert (whole / "selection.png").read_bytes().startswith(b"\x89PNG")
    runs = sorted((whole / "runs").iterdir())
    assert len(runs) == len(SETTINGS)
    assert all(verify_run(run / f"seed-{k}").holds for run in runs for k in (0, 4))


def test_a_report_has_the_same_points_as_the_terminal(whole, tmp_path):
    results = json.loads((whole / "results.json").read_text())
    page = write_report([whole / "runs"], tmp_path / "page.html")
    (last,) = [c for c in results["comparisons"] if c["baseline"] == "paper noise, privacy-aware"]
    points = f"{last['difference_points']['mean']:.1f} points"
    assert points in last["sentence"]
    assert points in page.headline.sentence


def test_it_shows_plan_client_and_table_and_takes_the_place_of_another(whole, terminal, tmp_path):
    shutil.copytree(whole, tmp_path / "demo")
    shown = terminal("demo", "--out", tmp_path / "demo", "--seeds", 2, "--rounds", 2)
    words = ("promises certified", "The strictest client", "tight noise", "points", "results.json")
    for one in (*words, "dpcohort verify"):
        assert one in shown
    found = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert found["comparisons"][0]["difference_points"]["count"] == 2

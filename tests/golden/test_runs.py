# SPDX-License-Identifier: Apache-2.0
"""Seeded trainings of every kind keep their bits; kept folders verify, load, report, go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

FOLDERS = Path(__file__).parent / "runs"
RUNS = list(json.loads((FOLDERS.parent / "runs.json").read_text()))
STOPPED = [name for name in RUNS if name.startswith("stopped")]
KEPT = sorted(path.name for path in FOLDERS.iterdir())


@pytest.fixture
def copied(tmp_path):
    """``copied("batched")``: a kept run folder to change as one likes."""
    return lambda name: shutil.copytree(FOLDERS / name, tmp_path / name)


def test_every_case_is_tested(make):
    assert list(make.RUNS) == RUNS
    assert sorted([*make.KEPT, *make.STOPPED, "private"]) == KEPT


@pytest.mark.parametrize("name", RUNS)
def test_a_training_of_this_kind_is_as_it_was(make, golden, same, name, tmp_path):
    make.train_case(name, tmp_path / "run")
    same(make.described(tmp_path / "run"), golden("runs")[name])


def test_runs_side_by_side_are_as_they_were(make, golden, same, tmp_path):
    same(make.side_by_side(tmp_path), golden("side_by_side"))


def test_requests_are_as_they_were(make, golden, same, tmp_path):
    same(make.COMPUTED["requests"](tmp_path), golden("computed")["requests"])


def test_clipped_sums_of_every_layer_keep_their_bits(make, golden, exact, tmp_path):
    if not exact:
        pytest.skip("this processor or library rounds otherwise than the one of probe.json")
    assert make.engine(tmp_path) == golden("computed")["engine"]


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_run_verifies_as_it_did(make, golden, same, name):
    same(make.verified(FOLDERS / name), golden("verified")[name])


def test_only_kept_runs_of_real_entropy_are_private():
    from dpcohort import Run

    private = [name for name in KEPT if Run.load(FOLDERS / name).is_private]
    assert private == ["federated", "private"]


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_run_loads_with_its_receipts(make, same, name):
    from dpcohort import Run

    run = Run.load(FOLDERS / name)
    assert run.is_finished == (name not in STOPPED)
    assert run.plan.sha256 == json.loads((FOLDERS / name / "run.json").read_text())["plan"]
    certified = {one.client: make.receipt_facts(one.to_dict()) for one in run.receipts()}
    written = [json.loads(path.read_text()) for path in (FOLDERS / name / "receipts").iterdir()]
    same(certified, {one["client"]: make.receipt_facts(one) for one in written})


@pytest.mark.parametrize("name", STOPPED)
def test_a_kept_run_goes_on_to_the_same_end(make, golden, same, copied, name):
    folder = copied(name)
    make.train_stopped(name, folder, resume=True)
    same(make.described(folder), golden("runs")[name])
    assert make.verified(folder)["exit code"] == 0


def test_a_kept_run_is_reported(make, tmp_path):
    page = tmp_path / "page.html"
    words = make.done("report", FOLDERS / "batched", "--out", page, "--json")
    assert [one for one in json.loads(words)["problems"] if one["kind"] == "broken"] == []
    assert page.stat().st_size > 10_000

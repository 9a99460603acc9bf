# SPDX-License-Identifier: Apache-2.0
"""Seeded trainings of every kind keep their bits; old run folders verify, load, report, go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

OLD = Path(__file__).parent / "runs"
RUNS = list(json.loads((OLD.parent / "runs.json").read_text()))
STOPPED = [name for name in RUNS if name.startswith("stopped")]
KEPT = sorted(path.name for path in OLD.iterdir())


@pytest.fixture
def old(tmp_path):
    """``old("batched")``: an old run folder to change as one likes."""
    return lambda name: shutil.copytree(OLD / name, tmp_path / name)


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


@pytest.mark.parametrize("name", [name for name in KEPT if name != "private"])
def test_an_old_run_verifies_as_it_did(make, golden, same, name):
    found, then = make.verified(OLD / name), golden("verified")[name]
    if name not in STOPPED:  # on purpose: nothing proves that a finished one was not changed
        (unsealed,) = (one for one in found["findings"] if one["subject"] == "result.json")
        assert "it has no seal" in unsealed["message"]
        found["findings"].remove(unsealed)
        assert found["exit code"] == 1
        found |= {key: then[key] for key in ("exit code", "holds")}
    assert found["exit code"] == then["exit code"]
    same(found, then)


def test_an_old_run_with_floating_point_noise_is_not_private_any_more(make):
    """On purpose: its noise can be computed from what it released."""
    from dpcohort import Run

    found = make.verified(OLD / "private")
    assert found["exit code"] == 1
    (only,) = (one for one in found["findings"] if one["subject"] != "result.json")
    assert only["kind"] == "overspent"
    assert "NOT PRIVATE" in only["message"]
    run = Run.load(OLD / "private")
    assert not run.is_private
    assert all(receipt.stamp.startswith("NOT PRIVATE") for receipt in run.receipts())


@pytest.mark.parametrize("name", [name for name in KEPT if name != "private"])
def test_an_old_run_loads_with_its_receipts(make, same, name):
    from dpcohort import Run

    run = Run.load(OLD / name)
    assert run.is_finished == (name not in STOPPED)
    settings = json.loads((OLD / name / "run.json").read_text())
    assert run.plan.sha256 == settings["plan"]
    written = [json.loads(path.read_text()) for path in (OLD / name / "receipts").iterdir()]
    certified = {
        receipt.client: make.receipt_facts(receipt.to_dict(), settings)
        for receipt in run.receipts()
    }
    same(certified, {one["client"]: make.receipt_facts(one, settings) for one in written})


@pytest.mark.parametrize("name", STOPPED)
def test_an_old_run_goes_on_to_the_same_end(make, golden, same, old, name):
    folder = old(name)
    make.train_stopped(name, folder, resume=True)
    same(make.described(folder), golden("runs")[name])
    if name == "stopped-adaptive":
        assert make.verified(folder)["exit code"] == 0


def test_an_old_run_is_reported(make, tmp_path):
    page = tmp_path / "page.html"
    code, words = make.dpcohort("report", OLD / "batched", "--out", page, "--json")
    broken = [one for one in json.loads(words)["problems"] if one["kind"] == "broken"]
    assert code == 1
    assert [one["message"].partition(",")[0] for one in broken] == ["it has no seal"]
    assert page.stat().st_size > 10_000

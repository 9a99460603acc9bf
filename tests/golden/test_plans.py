# SPDX-License-Identifier: Apache-2.0
"""Plans keep their hashes, and are made again to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpcohort import Plan

PLANS = sorted((Path(__file__).parent / "plans").glob("*.json"))


def _named(path: Path) -> str:
    return path.stem


def test_every_case_has_its_file(make):
    assert [path.stem for path in PLANS] == sorted(make.PLANS)
    kinds = {p.stem: json.loads(p.read_text())["participation"]["kind"] for p in PLANS}
    assert {kinds[name] for name in make.CASES["planned"]} == {"fixed cohorts"}
    assert {kinds[name] for name in make.CASES["adaptive"]} == {"capped rule"}


@pytest.mark.parametrize("path", PLANS, ids=_named)
def test_a_file_has_its_hash_and_is_written_again_as_it_was(make, path, tmp_path):
    plan = Plan.load(path)
    assert plan.sha256 == json.loads(path.read_text())["sha256"]
    plan.save(tmp_path / "again.json")
    again = (tmp_path / "again.json").read_text()
    assert make.without_version(again) == make.without_version(path.read_text())


@pytest.mark.parametrize("path", PLANS, ids=_named)
def test_the_same_settings_make_the_same_plan(make, path, tmp_path, exact_plans):
    make.plan_file(path.stem, tmp_path / "made.json")
    made, kept = (tmp_path / "made.json").read_text(), path.read_text()
    assert make.different(json.loads(made), json.loads(kept), exact=exact_plans) == []
    if exact_plans:
        assert make.without_version(made) == make.without_version(kept)


@pytest.mark.parametrize("name", ["floor-and-cap", "power-of-choice"])
def test_the_command_certifies_a_kept_plan(make, name, tmp_path):
    path = Path(__file__).parent / "plans" / f"{name}.json"
    make.done("plan", path, "--out", tmp_path / "again.json")
    assert make.without_version((tmp_path / "again.json").read_text()) == make.without_version(
        path.read_text()
    )

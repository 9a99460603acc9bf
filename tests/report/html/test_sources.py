# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re

import pytest

from dpcohort.errors import DataMissingError, InputError
from dpcohort.report.html._sources import read_groups, read_run


def test_seeds_of_one_label_are_one_group(trained):
    groups = read_groups([trained / "unbiased", trained / "privacy-aware"])
    assert [(group.name, len(group.runs)) for group in groups] == [
        ("unbiased", 2),
        ("privacy-aware", 2),
    ]
    assert all(run.verification.holds for group in groups for run in group.runs)
    assert not [problem for group in groups for run in group.runs for problem in run.problems]


def test_the_same_label_and_seed_twice_stay_apart(trained, finished):
    groups = read_groups([trained / "privacy-aware" / "seed-0", finished])
    assert len(groups) == 2
    assert groups[1].name.startswith("privacy-aware (")


@pytest.mark.parametrize("name", ["plan.json", "rounds.jsonl", "ledger.jsonl", "run.json"])
def test_a_missing_file_is_said_and_the_rest_is_read(finished, name):
    (finished / name).unlink()
    run = read_run(finished)
    assert any(name in problem.where + problem.message for problem in run.problems)
    assert (run.plan is None) == (name == "plan.json")
    assert (run.history == ()) == (name == "rounds.jsonl")


def test_an_edited_plan_is_not_believed(finished):
    text = (finished / "plan.json").read_text().replace("0.5", "5.5", 1)
    (finished / "plan.json").write_text(text)
    run = read_run(finished)
    assert run.plan is None
    assert run.verification is None
    assert any(p.kind == "broken" and "changed" in p.message for p in run.problems)
    assert run.test is not None


def test_an_edited_receipt_is_found(finished):
    path = next((finished / "receipts").glob("*.json"))
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "spent_draws": 0}))
    run = read_run(finished)
    assert any(p.kind == "broken" and "spent_draws" in p.message for p in run.problems)


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("no run")
    for name, error, words in (
        ("empty", DataMissingError, "is not a run folder"),
        ("note.txt", InputError, "is a file"),
        ("gone", DataMissingError, "there is no run at"),
    ):
        with pytest.raises(error, match=words):
            read_groups([tmp_path / name])


def test_garbage_among_the_rounds_costs_only_its_line(finished):
    lines = (finished / "rounds.jsonl").read_text().splitlines()
    (finished / "rounds.jsonl").write_text("\n".join(["nonsense", "[1]", *lines]) + "\n")
    run = read_run(finished)
    assert len(run.history) == len(lines)
    said = [
        problem.message for problem in run.problems if "rounds.jsonl, line 1" in problem.message
    ]
    assert len(said) == 1


def test_a_result_that_is_no_number_is_said_and_left_out(finished):
    text = (finished / "rounds.jsonl").read_text()
    spoilt = re.sub(r'"accuracy": [0-9.]+', '"accuracy": null', text)
    (finished / "rounds.jsonl").write_text(spoilt)
    run = read_run(finished)
    assert run.test is None
    assert any("not a number" in problem.message for problem in run.problems)

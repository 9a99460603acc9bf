# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort.errors import FileFormatError, InputError, VerificationError
from dpcohort.plan import Plan, make_plan
from dpcohort.training import Training


def _plan(**settings):
    clients = Population.from_arrays(
        ids=["a", 'quo"te', "ünï", "<b>", "gift"],
        sizes=[600, 500, 400, 700, 300],
        epsilon=[0.3, 1 / 3, 6.0, 0.05, np.nan],
        delta=[1e-5, 1e-6, 1e-5, 1e-5, np.nan],
        public=[False, False, False, False, True],
        batch_sizes=[60, 0, 0, 10, 0],
    )
    return make_plan(clients, Training(rounds=10, cohort_size=3, batch_size=40), seed=1, **settings)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.json"
    _plan().save(path)
    return path


@pytest.mark.parametrize(
    "settings",
    [{}, {"accountant": "paper"}, {"selection": "threshold"}, {"draws": "independent"}],
    ids=str,
)
def test_a_plan_reads_back_to_the_same_bits(tmp_path, settings):
    if settings.get("selection") == "threshold":
        from dpcohort.selection.rules import rule_from_settings

        settings = {"selection": rule_from_settings("threshold", threshold=0.3)}
    plan = _plan(**settings)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.sha256 == plan.sha256
    assert again.population.ids == plan.population.ids
    assert np.array_equal(again.noise_multipliers, plan.noise_multipliers, equal_nan=True)
    assert np.array_equal(again.certified_epsilon, plan.certified_epsilon, equal_nan=True)
    assert np.array_equal(again.selection.probabilities, plan.selection.probabilities)
    assert np.array_equal(again.batch_sizes, plan.batch_sizes)
    assert again.schedule == plan.schedule
    assert again.selection.settings == plan.selection.settings


def test_saving_twice_gives_the_same_bytes(saved, tmp_path):
    Plan.load(saved).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()


def test_the_file_is_plain_json_without_infinities(saved):
    content = json.loads(saved.read_text(), parse_constant=pytest.fail)
    assert content["format"] == "dpcohort plan"
    assert content["clients"]["id"][2] == "ünï"


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["clients"]["epsilon"].__setitem__(0, 0.31),
        lambda c: c["noise"]["noise_multiplier"].__setitem__(0, 0.5),
        lambda c: c["schedule"]["cohorts"].reverse(),
        lambda c: c["training"].__setitem__("clip", 2.0),
        lambda c: c["selection"].__setitem__("rule", "uniform"),
        lambda c: c["selection"].__setitem__("gap", 0.0),
        lambda c: c["clients"]["id"].__setitem__(0, "b"),
        lambda c: c.__setitem__("sha256", "0" * 64),
    ],
)
def test_an_edited_plan_is_noticed(saved, change):
    content = json.loads(saved.read_text())
    change(content)
    saved.write_text(json.dumps(content))
    with pytest.raises(VerificationError, match="changed after it was written"):
        Plan.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[: len(t) // 2], "not valid JSON"),
        (lambda t: "", "not valid JSON"),
        (lambda t: "[]", "not a dpcohort plan"),
        (lambda t: "[" * 100_000, "not valid JSON"),
        (lambda t: t.replace('"schema": 1', '"schema": 2'), "Upgrade dpcohort"),
        (lambda t: t.replace('"cohorts"', '"kohorts"'), "'cohorts' is missing"),
        (lambda t: t.replace('"rounds": 10', '"rounds": -1'), "rounds = -1"),
        (lambda t: t.replace('"rounds": 10', '"rounds": NaN'), "NaN is not a number"),
        (lambda t: t.replace('"rounds": 10', '"roundz": 10'), "roundz"),
        (lambda t: t.replace('"lifted": []', '"lifted": [99]'), "not a usable plan"),
        (lambda t: t.replace('"client": [', '"client": ["x", '), "not a usable plan"),
    ],
)
def test_a_broken_file_gets_one_clear_message(saved, change, message):
    saved.write_text(change(saved.read_text()))
    with pytest.raises(FileFormatError, match=message) as error:
        Plan.load(saved)
    assert str(saved) in str(error.value)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(InputError, match="dpcohort plan CONFIG"):
        Plan.load(tmp_path / "none.json")


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="not a text file"):
        Plan.load(tmp_path / "plan.json")


def test_nothing_half_written_when_the_folder_is_missing(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        _plan().save(tmp_path / "none" / "plan.json")
    assert os.listdir(tmp_path) == []


def test_what_is_read_cannot_be_changed(saved):
    plan = Plan.load(saved)
    for column in (
        plan.noise_multipliers,
        plan.certified_epsilon,
        plan.selection.probabilities,
        plan.schedule.cohorts,
    ):
        assert not column.flags.writeable


def test_a_schedule_under_a_wrong_hash_is_noticed(saved):
    content = json.loads(saved.read_text())
    content["schedule"]["sha256"] = "0" * 64
    saved.write_text(json.dumps(content))
    with pytest.raises(VerificationError, match="schedule"):
        Plan.load(saved)

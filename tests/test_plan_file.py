# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dpcohort.adaptive import make_adaptive_plan
from dpcohort.adaptive._rule import RecordedRule
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


def _adaptive(rule="power-of-choice"):
    clients = Population.from_arrays(
        sizes=[50] * 5,
        epsilon=[0.3, 1 / 3, 6.0, 0.5, np.nan],
        delta=[1e-5, 1e-6, 1e-5, 1e-5, np.nan],
        public=[False, False, False, False, True],
    )
    training = Training(rounds=6, cohort_size=2, batch_size=10)
    return make_adaptive_plan(clients, training, rule=rule, seed=5)


@pytest.fixture(params=["fixed", "capped"])
def written(request, tmp_path):
    """The text of a plan of either kind."""
    plan = _plan() if request.param == "fixed" else _adaptive()
    plan.save(tmp_path / "written.json")
    return (tmp_path / "written.json").read_text()


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.json"
    _plan().save(path)
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["clients"]["epsilon"].__setitem__(0, 0.31),
        lambda c: c["noise"]["multiplier"].__setitem__(0, 0.5),
        lambda c: c["training"].__setitem__("clip", 2.0),
        lambda c: c["participation"].__setitem__("rule", "uniform"),
        lambda c: c["participation"].__setitem__("gap", 0.0),
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
        (lambda t: t.replace('"schema": 2', '"schema": 1'), "reads schema 2. Make the plan again"),
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


def test_a_schedule_under_another_hash_is_noticed(saved):
    content = json.loads(saved.read_text())
    content["participation"]["cohorts"].reverse()
    saved.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="schedule does not have the hash"):
        Plan.load(saved)


@pytest.mark.parametrize("count", [10**13, 10**9, 1, -1, 2.5, True, None, "2"])
def test_a_count_of_clients_is_that_of_their_ids(saved, count):
    content = json.loads(saved.read_text())
    content["clients"]["count"] = count
    saved.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=r"clients\.count = .* the number of ids"):
        Plan.load(saved)


def test_a_plan_nested_without_end_is_refused(saved):
    nested = '"settings": ' + '{"a":' * 300 + "1" + "}" * 300
    text = re.sub(r'"settings": [^\n]*', nested + ",", saved.read_text())
    saved.write_text(text)
    with pytest.raises(FileFormatError, match="nested too deeply"):
        Plan.load(saved)


# adaptive plans


class Own:
    """A rule of somebody else."""

    name, statistic, mini_batch, watches_updates = "own", "loss", False, False

    def check(self, clients, cohort_size, public):
        pass

    def expected_reports(self, clients, rounds, draw_cap):
        return rounds

    def ask(self, view):
        return view.can_report

    def choose(self, view, answers):
        return np.array(sorted(answers)[: view.cohort_size])


def test_a_file_runs_no_rule_of_somebody_else(tmp_path):
    plan = _adaptive(Own())
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert isinstance(again.participation.rule, RecordedRule)
    with pytest.raises(InputError, match="not part of dpcohort"):
        again.participation.rule.ask(None)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999"], ids=["long", "infinite"])
def test_numbers_that_are_too_large_are_no_traceback(tmp_path, written, number):
    (tmp_path / "plan.json").write_text(re.sub(r'"size": [^\n]*', f'"size": {number},', written))
    with pytest.raises(FileFormatError, match="not a usable plan"):
        Plan.load(tmp_path / "plan.json")

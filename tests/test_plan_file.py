# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os

import numpy as np
import pytest

from dpcohort._version import __version__
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.adaptive.rules import PowerOfChoice
from dpcohort.clients import Population
from dpcohort.errors import FileFormatError, InputError, VerificationError
from dpcohort.plan import Plan, RecordedRule, make_plan
from dpcohort.training import Training

#: A file of schema 1, as it was written when there was no other. It must be read for ever.
WRITTEN = r"""{
"format": "dpcohort plan",
"schema": 1,
"dpcohort": "0.1.0",
"sha256": "468cb3206135de08d4db93ec2de2f8b6439df8a5ff679feec66597ff3bec05b2",
"training": {
  "rounds": 2,
  "cohort_size": 2,
  "local_steps": 1,
  "batch_size": 20,
  "sampling_rate": null,
  "oversized_batch": "error",
  "clip": 1.0,
  "dimension": 5,
  "smoothness": 1.0
},
"contract": {
  "accountant": "tight",
  "sampler": "poisson",
  "neighbours": "zero-out"
},
"selection": {
  "rule": "unbiased",
  "settings": {},
  "noise_model": "exact",
  "eta": 1.5,
  "objective": 0.75,
  "lower_bound": 0.5,
  "gap": 0.25,
  "probabilities": [0.25, 0.25, 0.5]
},
"schedule": {
  "draws": "systematic",
  "seed": 7,
  "sha256": "77da91b6c8642efb9d5edaab1b3609a0b35bed155770b6fd1f80244fb379125b",
  "cohorts": [
    [0, 2],
    [1, 2]
  ]
},
"clients": {
  "count": 3,
  "id": ["a", "\u00fcn\u00ef", "gift"],
  "size": [40, 60, 100],
  "epsilon": [0.5, 2.0, null],
  "delta": [1e-05, 1e-06, null],
  "batch_size": [10, 0, 0],
  "public": [2]
},
"noise": {
  "client": [0, 1],
  "noise_multiplier": [4.0, 1.5],
  "certified_epsilon": [0.375, 1.75],
  "lifted": [1]
}
}
"""


#: The same of an adaptive plan (an indented line goes on the one before).
WRITTEN_ADAPTIVE = r"""{
"format": "dpcohort adaptive plan",
"schema": 1,
"dpcohort": "0.1.0",
"sha256": "eacea4a7003e1a4e77b74164da505423f5d354803bad757baf99b0be19d2b367",
"training": {"rounds": 2, "cohort_size": 2, "local_steps": 1, "batch_size": 20, "sampling_rate":
  null, "oversized_batch": "error", "clip": 1.0, "dimension": 5, "smoothness": 1.0},
"contract": {"accountant": "tight", "sampler": "poisson", "neighbours": "zero-out"},
"rule": "power-of-choice",
"rule_settings": {"d": 3, "shrink": false},
"reports": {"statistic": "loss", "loss_bound": 5.0, "mini_batch": false, "mode": "private",
  "share": 0.1},
"seed": 7,
"watches_updates": false,
"clients": {"id": ["a", "\u00fcn\u00ef", "gift"], "size": [40, 60, 100], "epsilon": [0.5, 2.0,
  null], "delta": [1e-05, 1e-06, null], "batch_size": [10, 0, 0], "public": [false, false,
  true]},
"caps": {"draws": [2, 2, 3], "reports": [1, 2, 2]},
"noise": {"noise_multiplier": [4.0, 1.5, 0.0], "report_multiplier": [9.0, 8.0, 0.0],
  "certified_epsilon": [0.375, 1.75, null], "lifted": [false, true, false]}
}
""".replace("\n  ", " ")


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


@pytest.mark.parametrize("written", [WRITTEN, WRITTEN_ADAPTIVE], ids=["fixed", "adaptive"])
def test_a_file_of_schema_1_reads_and_is_written_as_it_always_was(tmp_path, written):
    (tmp_path / "old.json").write_text(written)
    plan = Plan.load(tmp_path / "old.json")
    assert plan.sha256 == json.loads(written)["sha256"]
    assert plan.noise_multipliers.tolist() == [4.0, 1.5, 0.0]
    assert plan.lifted.tolist() == [False, True, False]
    if plan.adaptive is not None:
        assert plan.report_caps.tolist() == [1, 2, 2]
        assert plan.adaptive.rule == PowerOfChoice(d=3)
    plan.save(tmp_path / "new.json")
    expected = written.replace('"dpcohort": "0.1.0"', f'"dpcohort": "{__version__}"')
    assert (tmp_path / "new.json").read_text() == expected


@pytest.mark.parametrize("settings", ["null", "3", "[99]", '"x"'])
def test_settings_that_cannot_be_hashed_are_no_traceback(tmp_path, settings):
    (tmp_path / "plan.json").write_text(
        WRITTEN.replace('"settings": {}', f'"settings": {settings}')
    )
    with pytest.raises(FileFormatError, match="not a usable plan"):
        Plan.load(tmp_path / "plan.json")


def test_a_missing_key_says_how_to_make_the_plan_again(tmp_path):
    (tmp_path / "plan.json").write_text(WRITTEN.replace('"cohorts"', '"kohorts"'))
    with pytest.raises(FileFormatError) as caught:
        Plan.load(tmp_path / "plan.json")
    assert str(caught.value).endswith(
        "the key 'cohorts' is missing. Make the plan again with `dpcohort plan`."
    )


@pytest.mark.parametrize("written", [WRITTEN, WRITTEN_ADAPTIVE], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("said", ["0" * 64, None, 3])
def test_a_plan_is_only_the_plan_it_says_it_is(tmp_path, written, said):
    path, content = tmp_path / "plan.json", json.loads(written)
    found = content["sha256"]
    path.write_text(json.dumps({**content, "sha256": said}))
    with pytest.raises(VerificationError) as caught:
        Plan.load(path)
    assert str(caught.value) == (
        f"{path} was changed after it was written: its content hashes to {found[:16]}... and it "
        f"says {str(said)[:16]}.... Make the plan again."
    )


@pytest.mark.parametrize("count", [10**13, 10**9, 1, -1, 2.5, True, None, "2"])
def test_a_count_of_clients_is_that_of_their_ids(tmp_path, count):
    content = json.loads(WRITTEN)
    content["clients"]["count"] = count
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=r"clients\.count = .* as there are ids"):
        Plan.load(tmp_path / "plan.json")


def test_a_plan_nested_without_end_is_refused(tmp_path):
    content = WRITTEN.replace('"settings": {}', '"settings": ' + '{"a":' * 300 + "1" + "}" * 300)
    assert content != WRITTEN
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(FileFormatError, match="nested too deeply"):
        Plan.load(tmp_path / "plan.json")


# adaptive plans


@pytest.mark.parametrize("rule", ["power-of-choice", "cpow-d", "oort", "clustered", "donated"])
def test_an_adaptive_plan_reads_back_equal(tmp_path, rule):
    plan = _adaptive(rule)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.adaptive.rule == plan.adaptive.rule
    again.verify_unless_made_here()


def test_any_change_of_an_adaptive_plan_is_noticed(tmp_path):
    path = tmp_path / "plan.json"
    _adaptive().save(path)
    content = json.loads(path.read_text())
    content["caps"]["draws"][0] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(VerificationError, match="was changed"):
        Plan.load(path)
    del content["caps"]
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="caps"):
        Plan.load(path)
    path.write_text(json.dumps(content)[:99])
    with pytest.raises(FileFormatError, match="cut short"):
        Plan.load(path)
    path.write_text("{}")
    with pytest.raises(FileFormatError, match="not a dpcohort plan"):
        Plan.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        Plan.load(tmp_path / "none.json")


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
    assert isinstance(again.adaptive.rule, RecordedRule)
    with pytest.raises(InputError, match="not part of dpcohort"):
        again.adaptive.rule.ask(None)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999"], ids=["long", "infinite"])
def test_numbers_that_are_too_large_are_no_traceback(tmp_path, number):
    (tmp_path / "plan.json").write_text(
        WRITTEN_ADAPTIVE.replace("[40, 60, 100]", f"[40, 60, {number}]")
    )
    with pytest.raises(FileFormatError, match="not a usable plan"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            '"schema": 1',
            '"schema": 2',
            f"written in schema 2; this dpcohort {__version__} reads schema 1. Upgrade "
            "dpcohort, or make the plan again.",
        ),
        (
            '"caps"',
            '"kaps"',
            "the key 'caps' is missing. Make the plan again with `dpcohort plan`.",
        ),
    ],
)
def test_an_adaptive_file_that_cannot_be_used_says_what_to_do(tmp_path, old, new, words):
    (tmp_path / "plan.json").write_text(WRITTEN_ADAPTIVE.replace(old, new))
    with pytest.raises(FileFormatError) as caught:
        Plan.load(tmp_path / "plan.json")
    assert str(caught.value) == f"{tmp_path / 'plan.json'}: {words}"

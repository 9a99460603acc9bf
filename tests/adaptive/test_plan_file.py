# SPDX-License-Identifier: Apache-2.0
"""Files of adaptive plans."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort import Population, make_plan
from dpcohort._version import __version__
from dpcohort.adaptive.rules import PowerOfChoice
from dpcohort.plan_file import RecordedRule, load_adaptive_plan, load_any_plan
from dpcohort.errors import FileFormatError, InputError, VerificationError

#: A file of schema 1, as it was written when there was no other (an indented line goes on the one
#: before). It must be read for ever.
WRITTEN = r"""{
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


@pytest.mark.parametrize("rule", ["power-of-choice", "cpow-d", "oort", "clustered"])
def test_a_plan_reads_back_equal(plan_of, tmp_path, rule):
    plan = plan_of(rule)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.rule == plan.rule
    again.verify_unless_made_here()


def test_public_clients_read_back(plan_of, tmp_path):
    nan = float("nan")
    mixed = Population.from_arrays(
        sizes=[50, 50, 50],
        epsilon=[1.0, 2.0, nan],
        delta=[1e-5, 1e-5, nan],
        public=[False, False, True],
    )
    plan = plan_of("donated", population=mixed)
    plan.save(tmp_path / "plan.json")
    assert load_adaptive_plan(tmp_path / "plan.json") == plan


def test_a_plan_of_fixed_cohorts_is_read_too(people, settings, tmp_path):
    make_plan(people, settings, seed=0).save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == make_plan(people, settings, seed=0)


def test_any_change_is_noticed(plan_of, tmp_path):
    path = tmp_path / "plan.json"
    plan_of().save(path)
    content = json.loads(path.read_text())
    content["caps"]["draws"][0] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(VerificationError, match="was changed"):
        load_adaptive_plan(path)
    del content["caps"]
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="caps"):
        load_adaptive_plan(path)
    path.write_text(json.dumps(content)[:99])
    with pytest.raises(FileFormatError, match="cut short"):
        load_adaptive_plan(path)
    path.write_text("{}")
    with pytest.raises(FileFormatError, match="not an adaptive plan"):
        load_adaptive_plan(path)
    with pytest.raises(InputError, match="cannot be read"):
        load_adaptive_plan(tmp_path / "none.json")


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


def test_a_file_runs_no_rule_of_somebody_else(plan_of, tmp_path, view_of):
    plan = plan_of(Own())
    plan.save(tmp_path / "plan.json")
    again = load_adaptive_plan(tmp_path / "plan.json")
    assert again == plan
    assert isinstance(again.rule, RecordedRule)
    with pytest.raises(InputError, match="not part of dpcohort"):
        again.rule.ask(view_of([1, 1]))


def test_a_file_of_schema_1_reads_and_is_written_as_it_always_was(tmp_path):
    (tmp_path / "old.json").write_text(WRITTEN)
    plan = Plan.load(tmp_path / "old.json")
    assert plan.sha256 == "eacea4a7003e1a4e77b74164da505423f5d354803bad757baf99b0be19d2b367"
    assert plan.report_caps.tolist() == [1, 2, 2]
    assert plan.rule == PowerOfChoice(d=3)
    plan.save(tmp_path / "new.json")
    expected = WRITTEN.replace('"dpcohort": "0.1.0"', f'"dpcohort": "{__version__}"')
    assert (tmp_path / "new.json").read_text() == expected


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999"], ids=["long", "infinite"])
def test_numbers_that_are_too_large_are_no_traceback(tmp_path, number):
    (tmp_path / "plan.json").write_text(WRITTEN.replace("[40, 60, 100]", f"[40, 60, {number}]"))
    with pytest.raises(FileFormatError, match="not a usable plan"):
        load_adaptive_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"schema": 1', '"schema": 2', "written in schema 2; make it again."),
        ('"caps"', '"kaps"', "the key 'caps' is missing. Make the plan again."),
    ],
)
def test_a_file_that_cannot_be_used_says_what_to_do(tmp_path, old, new, words):
    (tmp_path / "plan.json").write_text(WRITTEN.replace(old, new))
    with pytest.raises(FileFormatError) as caught:
        load_adaptive_plan(tmp_path / "plan.json")
    assert str(caught.value) == f"{tmp_path / 'plan.json'}: {words}"

# SPDX-License-Identifier: Apache-2.0
"""Files of adaptive plans."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort import Population, make_plan
from dpcohort.adaptive.plan_file import RecordedRule, load_adaptive_plan, load_any_plan
from dpcohort.errors import FileFormatError, InputError, VerificationError


@pytest.mark.parametrize("rule", ["power-of-choice", "cpow-d", "oort", "clustered"])
def test_a_plan_reads_back_equal(plan_of, tmp_path, rule):
    plan = plan_of(rule)
    plan.save(tmp_path / "plan.json")
    again = load_any_plan(tmp_path / "plan.json")
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
    assert load_any_plan(tmp_path / "plan.json") == make_plan(people, settings, seed=0)


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

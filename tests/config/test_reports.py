# SPDX-License-Identifier: Apache-2.0
"""The keys of [selection] for rules that choose during the training."""

from __future__ import annotations

import pytest

from dpcohort.config import loads_config
from dpcohort.config.reports import REPORT_KEYS, kind_of_rule, split_report_settings
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plugins import RuleNameWarning

CLIENTS = "population = { count = 9, size = 50, epsilon = 1.0 }\n[selection]\n"


def test_settings_are_the_rules_own_or_about_reports():
    config = loads_config(
        CLIENTS + 'rule = "rpow-d"\nd = 5\nreports = "raw"\nparticipation_cap = 7\n'
    )
    assert config.is_adaptive
    assert config.rule_settings == {"d": 5}
    assert config.report_settings == {"reports": "raw", "participation_cap": 7}
    assert not loads_config(CLIENTS).is_adaptive
    assert loads_config(CLIENTS).report_settings == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('rule = "rpow-d"\nreport_share = 1.0', "line 4.*report_share = 1.0"),
        ('rule = "rpow-d"\nreport_share = 0', "report_share"),
        ('rule = "rpow-d"\nparticipation_cap = 0', "participation_cap = 0"),
        ('rule = "rpow-d"\nreport_cap = "many"', "report_cap = 'many'"),
        ('rule = "rpow-d"\nreports = "noisy"', "one of private, raw"),
        ('rule = "rpow-d"\nloss_bound = -1.0', "loss_bound"),
        ('rule = "rpow-d"\nd = 0', "d = 0"),
        ('rule = "rpow-d"\nreport_shares = 0.1', "Did you mean 'report_share'"),
        ('rule = "rpow-dd"', "Did you mean 'rpow-d'"),
        ('rule = "clustered"\nreport_share = 0.1', "asks for no reports"),
        ('rule = "ucb-cs"\ngamma = 2.0', "gamma = 2.0"),
        ('rule = "unbiased"\nreport_share = 0.1', "not a setting of the rule unbiased"),
    ],
)
def test_mistakes_are_told_with_their_place(text, words):
    with pytest.raises(FileFormatError, match=words):
        loads_config(CLIENTS + text)


def test_kinds_of_rules():
    assert kind_of_rule("threshold") == "selection"
    assert kind_of_rule("clustered") == "adaptive"
    assert kind_of_rule("dpcohort.adaptive.rules.rpow_d:RecentPowerOfChoice") == "adaptive"
    assert kind_of_rule("dpcohort.selection.rules.baselines:Uniform") == "selection"
    with pytest.raises(InputError, match="rule = "):
        kind_of_rule("none of these")


def test_automatic_caps_are_fine():
    settings = {"participation_cap": "auto", "report_cap": "auto"}
    assert split_report_settings("oort", settings) == ({}, settings)
    assert set(REPORT_KEYS) >= set(settings)


def test_a_package_with_an_adaptive_rule_does_not_take_the_name_of_a_planned_one(
    tmp_path, monkeypatch
):
    info = tmp_path / "adaptive_rules_of_this_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy-rules\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dpcohort.adaptive]\nunbiased = nowhere:Rule\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert kind_of_rule("unbiased") == "selection"
    with pytest.warns(RuleNameWarning, match="greedy-rules"):
        assert not loads_config(CLIENTS + 'rule = "unbiased"\n').is_adaptive

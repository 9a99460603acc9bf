# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.plugins import rule_names
from dpcohort_lab.rule_comparison import chosen_rules, rule_pairs

SMALL = ["training.rounds=3", "training.cohort_size=3", "population.count=8"]


@pytest.fixture
def config():
    return loads_config(commented_config("digits")).with_overrides(SMALL)


def made(config, selections, aggregations, **options):
    return rule_pairs(
        config,
        selections=chosen_rules("selection", selections),
        aggregations=chosen_rules("aggregation", aggregations),
        device="cpu",
        **options,
    )


def test_a_list_of_rules_with_settings():
    rules = chosen_rules("aggregation", 'mean, trimmed-mean(trim = 0.2), own.rules:Mine(word="a")')
    assert [rule.name for rule in rules] == ["mean", "trimmed-mean", "own.rules:Mine"]
    assert rules[1].settings == {"trim": 0.2}
    assert rules[1].label == "trimmed-mean(trim = 0.2)"
    assert rules[1].changes == ['aggregation.rule="trimmed-mean"', "aggregation.trim=0.2"]
    assert rules[2].settings == {"word": "a"}


def test_all_are_all_there_are():
    everyone = chosen_rules("selection", "all")
    kinds = [*rule_names("selection"), *rule_names("adaptive")]
    assert [rule.name for rule in everyone] == kinds
    assert not any(rule.asked for rule in everyone)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("meen", "Did you mean 'mean'"),
        ("", "rules like"),
        ("mean(", "rules like"),
        ("mean,,mean", "rules like"),
        ("trimmed-mean(0.2)", "settings like"),
        ("trimmed-mean(trim=)", "settings like"),
    ],
)
def test_a_list_that_cannot_be_read(text, words):
    with pytest.raises(InputError, match=words):
        chosen_rules("aggregation", text)


def test_every_pair_shares_the_plan_of_its_selection(config):
    pairs, skipped = made(config, "unbiased,privacy-aware", "mean,trimmed-mean", seeds=2)
    assert [(selection, aggregation) for selection, aggregation, _ in pairs] == [
        ("unbiased", "mean"), ("unbiased", "trimmed-mean"),
        ("privacy-aware", "mean"), ("privacy-aware", "trimmed-mean"),
    ]  # fmt: skip
    assert skipped == []
    assert pairs[0][2][0].plan is pairs[1][2][0].plan
    assert [job.seed for job in pairs[0][2]] == [0, 1]
    assert 'rule = "trimmed-mean"' in pairs[1][2][0].source.text
    assert pairs[1][2][0].settings()["aggregation"]["rule"] == "trimmed-mean"
    # The configuration's own settings stay with the configuration's own rule.
    assert pairs[2][2][0].plan.participation.settings == {"eta": "auto"}


def test_impossible_and_senseless_pairs_say_why(config):
    _, skipped = made(
        config, "unbiased,threshold(threshold=2)", "mean,size-weighted,importance-compensated",
        seeds=1,
    )  # fmt: skip
    reasons = {(one, other): reason for one, other, reason in skipped}
    assert "size would count twice" in reasons["unbiased", "size-weighted"]
    assert "nothing to compensate" in reasons["unbiased", "importance-compensated"]
    assert "never drawn" in reasons["threshold(threshold=2)", "importance-compensated"]
    assert "size would count twice" in reasons["threshold(threshold=2)", "size-weighted"]


def test_what_all_brings_and_cannot_be_is_left_out(config):
    pairs, skipped = made(config, "all", "mean", seeds=1)
    reasons = {selection: reason for selection, _, reason in skipped}
    assert "needs the setting 'threshold'" in reasons["threshold"]
    assert not reasons["threshold"].startswith("selection")
    assert [selection for selection, _, _ in pairs][:2] == ["privacy-aware", "unbiased"]
    assert len(pairs) + len(skipped) == len(chosen_rules("selection", "all"))


@pytest.mark.parametrize(
    ("selections", "aggregations", "words"),
    [
        ("threshold", "mean", "needs the setting 'threshold'"),
        ("unbiased", "clipped-mean", "needs the setting 'bound'"),
        ("unbiased", "trimmed-mean(trim=0.8)", "trim = 0.8"),
        ("unbiased", "size-weighted", "no pair of rules can be trained: .*count twice"),
        ("threshold(threshold=1e9)", "mean", "small enough for somebody"),
    ],
)
def test_what_was_asked_for_is_refused(config, selections, aggregations, words):
    with pytest.raises(InputError, match=words):
        made(config, selections, aggregations, seeds=1)

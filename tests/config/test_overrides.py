# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.config.overrides import apply_overrides
from dpcohort.errors import InputError

VALUES = {
    "training": {"rounds": 10, "batch_size": 64},
    "selection": {"rule": "privacy-aware", "eta": 2.0, "floor": 0.1},
    "population": {"public": [{"size": 5}]},
}


def changed(*overrides: str):
    return apply_overrides(VALUES, overrides)[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200", 200),
        ("0.5", 0.5),
        ("1_000", 1000),
        ("true", True),
        ('"a b"', "a b"),
        ("word", "word"),
        ("mixture-0.5-10", "mixture-0.5-10"),
        ("data/my clients.csv", "data/my clients.csv"),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        (" 3 ", 3),
    ],
)
def test_values_are_toml_and_single_words_need_no_quotes(text: str, value: object):
    assert changed(f"training.rounds={text}")["training"]["rounds"] == value


def test_the_original_is_left_alone():
    changed("population.public.0.size=9", "training.rounds=1")
    assert VALUES["training"]["rounds"] == 10
    assert VALUES["population"]["public"] == [{"size": 5}]


def test_later_ones_win_and_new_tables_are_made():
    assert changed("schedule.seed=1", "schedule.seed=2")["schedule"] == {"seed": 2}


def test_an_entry_of_a_list_is_reached_by_its_position():
    assert changed("population.public.0.size=9")["population"]["public"] == [{"size": 9}]


def test_an_empty_value_takes_the_key_out():
    assert "rounds" not in changed("training.rounds=")["training"]
    assert changed("training.clip=")["training"] == VALUES["training"]


def test_keys_that_exclude_each_other_take_each_others_place():
    assert changed("training.sampling_rate=0.1")["training"] == {"rounds": 10, "sampling_rate": 0.1}
    assert "eta" not in changed("selection.bias_cap=0.3")["selection"]
    both = changed("training.batch_size=3", "training.sampling_rate=0.1")["training"]
    assert {"batch_size", "sampling_rate"} <= set(both)  # asked for both: the check will say so


def test_another_rule_drops_the_settings_of_the_old_one():
    assert changed("selection.rule=unbiased")["selection"] == {"rule": "unbiased"}
    assert changed("selection.rule=privacy-aware")["selection"] == VALUES["selection"]
    threshold = changed("selection.threshold=2", "selection.rule=threshold")["selection"]
    assert threshold == {"rule": "threshold", "threshold": 2}


@pytest.mark.parametrize(
    "override",
    ["training.rounds", "=3", "training.=3", ".rounds=3", "", "a..b=3", "training.rounds=[1",
     "training.rounds=1\nclip=2", "training.rounds=1,5", "training.rounds=" + "[" * 10_000,
     "training.rounds=" + "9" * 5_000],
)  # fmt: skip
def test_what_is_not_a_key_and_a_value(override: str):
    with pytest.raises(
        InputError, match=r"--set = .* a key and a value, as in training\.rounds=200"
    ):
        changed(override)


@pytest.mark.parametrize(
    "override",
    [
        "training.rounds.x=3",
        "population.public.7.size=3",
        "population.public.size=3",
        "training.0=1",
    ],
)
def test_what_does_not_lead_to_a_key(override: str):
    with pytest.raises(InputError, match=r"--set = .* a key inside an existing table"):
        changed(override)

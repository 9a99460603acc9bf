# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "setting",
    ["eta", "bias_cap", "rounds", "batch_size", "accountant", "sampling_rate", "rule", "floor"],
)
def test_each_setting_has_usual_values(terminal, config, setting):
    shown = terminal("what-if", setting, config)
    assert setting in shown
    assert "█" in shown


def test_one_clients_epsilon(terminal, config):
    found = terminal.json("what-if", "epsilon", config, "--client", "middle", "--values", "0.5:8:5")
    values = [outcome["value"] for outcome in found["outcomes"]]
    assert values == pytest.approx([0.5, 1, 2, 4, 8])
    followed = [outcome["client_probability"] for outcome in found["outcomes"]]
    assert followed == sorted(followed)
    assert "middle" in terminal("what-if", "epsilon", config, "--client", "middle")


def test_any_setting_of_a_plan_gives_what_the_changed_config_gives(terminal, config):
    def outcomes(*more):
        return terminal.json("what-if", *more)["outcomes"]

    for key, values in (("training.local_steps", "1,3"), ("selection.floor", "0,0.5")):
        tried = outcomes(key, config, "--values", values)
        for found in tried:
            change = f"{key}={found['value']}"
            (same,) = outcomes("rounds", config, "--values", "20", "--set", change)
            assert {**found, "value": 20} == {**same, "value": 20}
        assert tried[0]["noise_to_clip"] != tried[1]["noise_to_clip"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["learning_rate"], "dpcohort compare"),
        (["data.seed"], "dpcohort compare"),
        (["oversized_batch"], "--values"),
        (["selection.flor", "--values", "1"], "flor"),
        (["etta"], "eta"),
        (["eta", "--values", "a,b"], "numbers as"),
        (["eta", "--values", "0:1:5"], "0 < low"),
        (["eta", "--values", "1:2"], "low:high:count"),
        (["eta", "--values", "nan"], "eta"),
        (["epsilon"], "client"),
        (["epsilon", "--client", "gift"], "public"),
        (["rounds", "--values", "0"], "rounds"),
        (["rounds", "--values", "1.5"], "1.5"),
        (["eta", "--values", "1:100:1"], "1:100:1"),
        (["rounds", "--values", "inf"], "rounds"),
        (["accountant", "--values", "loose"], "tight"),
    ],
)
def test_bad_sweeps(terminal, config, arguments, words):
    terminal("what-if", *arguments[:1], config, *arguments[1:], code=2)
    assert words in terminal.errors

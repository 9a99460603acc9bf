# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.config import commented_config, load_config


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


def test_model_records_and_charges_decide_about_noise_too(terminal, tuned, tmp_path):
    config = tmp_path / "digits.toml"
    config.write_text(commented_config("digits"))

    def noise(*more):
        found = terminal.json("what-if", *more)["outcomes"]
        return [outcome["noise_to_clip"] for outcome in found]

    small, large = noise("model.name", config, "--values", "logistic,mlp")
    assert large > 2 * small  # counted anew, whatever the file states
    assert small == noise("rounds", config, "--values", "100", "--set", "training.rounds=100")[0]
    paid = [part for change in tuned(load_config(config), 0.5) for part in ("--set", change)]
    assert noise("rounds", config, "--values", "100", *paid)[0] > 1.2 * small
    assert (
        noise("public_share", config, "--values", "0.4", "--set", "population.total_size=")[0] > 0
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["learning_rate"], "dpcohort compare"),
        (["run.seed"], "dpcohort compare"),
        (["model.name"], "without [data]"),
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

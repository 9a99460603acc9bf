# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations


def test_in_words_and_numbers(terminal, config, tmp_path):
    terminal("plan", config, "--out", tmp_path / "plan.json")
    words = terminal("explain", "middle", tmp_path / "plan.json")
    for part in ("middle holds 500 records", "epsilon 1.5", "One more draw", "With epsilon 3"):
        assert part in words.replace("\n", " ")
    assert terminal.json("explain", "middle", tmp_path / "plan.json")["epsilon"] == 1.5


def test_from_a_config_or_a_list_of_clients(terminal, config, clients):
    assert "open holds 400" in terminal("explain", "open", config)
    assert "open holds 400" in terminal("explain", "open", "--clients", clients)


def test_another_budget(terminal, config):
    found = terminal.json("explain", "strict", config, "--epsilon", 5)
    assert found["larger_budget"]["epsilon"] == 5


def test_an_unknown_client_is_answered_with_the_nearest(terminal, config):
    terminal("explain", "midle", config, code=2)
    assert "middle" in terminal.errors

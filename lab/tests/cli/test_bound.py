# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


def test_every_term_and_whether_it_says_anything(terminal, config):
    shown = terminal("bound", config)
    for words in ("G^select,clip", "G^DP", "vanishing error", "Theorem 2", "says nothing", "η₀"):
        assert words in shown


def test_strong_convexity_adds_theorem_1(terminal, config):
    arguments = ("bound", config, "--strong-convexity", 0.1, "--initial-gap", 0.5)
    assert "Corollary 1" in terminal(*arguments)
    found = terminal.json(*arguments)
    assert found["corollary_1"]["total"] <= found["theorem_1"]["total"]


@pytest.mark.parametrize(
    ("option", "value"), [("--gradient-bound", 0), ("--initial-gap", -1), ("--clipping-gap", -1)]
)
def test_bad_constants(terminal, config, option, value):
    terminal("bound", config, option, value, code=2)
    assert option.strip("-").replace("-", "_") in terminal.errors


def test_a_finished_plan_is_not_a_config(terminal, config, tmp_path):
    terminal("plan", config, "-o", tmp_path / "plan.json")
    terminal("bound", tmp_path / "plan.json", code=2)
    assert "finished plan" in terminal.errors

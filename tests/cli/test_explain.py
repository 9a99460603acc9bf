# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

PLUGIN = """
from dpcohort.selection import PlannedRule
from dpcohort.selection import evaluated
class Own(PlannedRule):
    name = "own"
    def __init__(self, *, power=0.5):
        self.power = power
    def select(self, problem):
        p = problem.epsilon.clip(max=9) ** self.power
        p[problem.public] = p[~problem.public].max()
        return evaluated(self.name, p / p.sum(), problem, settings={"power": self.power})
"""


def test_in_words_and_numbers(terminal, config, tmp_path):
    terminal("plan", config, "--out", tmp_path / "plan.json")
    words = terminal("explain", "middle", tmp_path / "plan.json")
    for part in ("middle holds 500 records", "epsilon 1.5", "One more draw", "With epsilon 3"):
        assert part in words.replace("\n", " ")
    assert terminal.json("explain", "middle", tmp_path / "plan.json")["epsilon"] == 1.5


def test_a_client_in_the_place_of_the_source_is_told(terminal, config):
    terminal("explain", config, "middle", code=2)
    assert f"The client comes first: dpcohort explain middle {config}" in terminal.errors


@pytest.fixture
def own_rule(tmp_path, monkeypatch):
    (tmp_path / "own_rule_to_explain.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    return ["--set", "selection.rule=own_rule_to_explain:Own", "--set", "selection.power=0.25"]


def test_a_rule_of_ones_own_from_its_config_and_from_its_plan(terminal, config, own_rule, tmp_path):
    found = terminal.json("explain", "strict", config, *own_rule, "--epsilon", 4.8)
    assert found["rule"] == "own"
    assert 1 < found["larger_budget"]["times_as_often"] < 2  # (4.8 / 0.3) ** 0.25, of a whole of 1
    terminal("plan", config, *own_rule, "--out", tmp_path / "plan.json")
    told = " ".join(terminal("explain", "strict", tmp_path / "plan.json").split())
    assert "cannot be told from the plan alone" in told
    terminal("explain", "strict", tmp_path / "plan.json", "--epsilon", 5, code=2)
    assert "Give the config" in terminal.errors

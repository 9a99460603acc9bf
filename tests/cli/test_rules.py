# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import pytest

from dpcohort.plugins import RULES


def test_every_rule_has_a_line(terminal):
    shown = terminal("rules")
    for rules in RULES.values():
        for name in rules:
            assert f" {name} " in shown
    assert "needs" in shown
    assert "dpcohort compare-rules FILE" in shown


def test_one_rule_in_its_own_words(terminal):
    shown = terminal("rules", "trimmed-mean")
    assert "trim: share of the draws dropped at each end" in shown
    assert ">>>" not in shown
    assert "reference  Yin et al." in shown


@pytest.fixture
def broken_package(tmp_path, monkeypatch):
    info = tmp_path / "broken_rules_of_this_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-rules\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dpcohort.selection]\nbroken = no_such_module_x:Rule\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("no_such_module_x", None)


def test_a_package_that_cannot_be_loaded_does_not_hide_the_others(terminal, broken_package):
    shown = terminal("rules", "selection")
    assert "best-threshold" in shown
    assert "'broken' is announced as no_such_module_x:Rule" in terminal.errors


@pytest.fixture
def greedy_package(tmp_path, monkeypatch):
    info = tmp_path / "greedy_rules_of_this_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy-rules\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[dpcohort.selection]\nunbiased = nowhere:Rule\n"
        "[dpcohort.aggregation]\nuniform = nowhere:Other\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


NOTE = (
    "note: the rule 'unbiased' is that of dpcohort; the package greedy-rules announces another "
    "one by that name. To use that one, write rule = 'nowhere:Rule'."
)


def test_a_package_that_announces_a_name_of_this_one_is_told(terminal, greedy_package):
    listed = terminal.json("rules", "selection")
    assert NOTE in terminal.errors
    homes = [card["home"] for card in listed["selection"] if card["name"] == "unbiased"]
    assert homes == ["dpcohort.selection._rules"]
    terminal("rules", "adaptive")
    assert "note" not in terminal.errors
    terminal("rules", "unbiased")
    assert NOTE in terminal.errors


def test_a_name_of_this_package_means_its_own_rule(terminal, greedy_package):
    assert "uniform (selection, dpcohort" in terminal("rules", "uniform")


@pytest.mark.filterwarnings("default::dpcohort.plugins.RuleNameWarning")
def test_who_uses_such_a_name_in_a_config_is_told_once(terminal, greedy_package, config):
    with config.open("a") as file:
        file.write('[selection]\nrule = "unbiased"\n')
    assert terminal.json("plan", config)["summary"]
    assert terminal.errors.strip() == NOTE
    config.write_text(config.read_text().replace("unbiased", "privacy-aware"))
    terminal("plan", config)
    assert not terminal.errors


def test_a_class_of_ones_own_tells_about_itself(terminal, tmp_path, monkeypatch):
    (tmp_path / "own_rule_to_tell.py").write_text(
        'from dpcohort import plugin\n@plugin("aggregation")\n'
        'class Own:\n    """The first line."""\n    needs = "a list"\n'
        "    def combine(self, updates, cohort):\n        return updates[0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    shown = terminal("rules", "own_rule_to_tell:Own")
    assert "own_rule_to_tell:Own (aggregation, own_rule_to_tell)" in shown
    assert "needs      a list" in shown
    assert terminal.json("rules", "own_rule_to_tell:Own")["kind"] == "aggregation"
    terminal("rules", "pathlib:Path", code=2)
    assert '@dpcohort.plugin("adaptive")' in terminal.errors
    terminal("rules", "own_rule_to_tell:Owm", code=2)
    assert "has no function 'Owm'" in terminal.errors

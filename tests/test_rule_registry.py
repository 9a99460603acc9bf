# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from dpcohort.errors import InputError
from dpcohort.rule_registry import REGISTRIES, RuleRegistry

EVERY = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry.built_in]

PLUGIN = '''
from dataclasses import dataclass

@dataclass(frozen=True)
class Last:
    """The last draw alone."""

    name = "last"
    needs, leaks, reference = "nothing", "the last draw", "this test"
    factor: float = 1.0

    def combine(self, updates, cohort):
        return self.factor * updates[-1]
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that brings rules, installed as pip would leave it."""
    (tmp_path / "plugin_of_this_test.py").write_text(PLUGIN)
    info = tmp_path / "plugin_of_this_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-this-test\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[dpcohort.aggregation]\nlast = plugin_of_this_test:Last\nmean = plugin_of_this_test:Last\n"
        "broken = plugin_of_this_test:Missing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("plugin_of_this_test", None)


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=[f"{k}-{n}" for k, n in EVERY])
def test_every_rule_says_what_it_needs_shows_and_comes_from(kind, name):
    card = REGISTRIES[kind].card(name)
    assert card.name == name
    for words in (card.needs, card.leaks, card.reference, card.summary):
        assert words
        assert words != "not said"
        assert "\n" not in words
    assert set(card.to_dict()) == {
        "kind", "name", "summary", "needs", "leaks", "reference", "settings", "home"
    }  # fmt: skip


def test_names_are_those_of_the_files_and_nothing_is_loaded_for_them():
    code = (
        "import sys\n"
        "from dpcohort.rule_registry import REGISTRIES\n"
        "assert 'best-threshold' in REGISTRIES['selection'].names\n"
        "assert 'mean' in REGISTRIES['aggregation']\n"
        "assert not any(m.startswith(('torch', 'numpy.random._x', 'dpcohort.selection')) "
        "for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_are_checked_without_torch():
    code = (
        "import sys\n"
        "from dpcohort.rule_registry import REGISTRIES\n"
        "for name in REGISTRIES['aggregation'].built_in:\n"
        "    REGISTRIES['aggregation'].settings_of(name)\n"
        "REGISTRIES['aggregation'].check('trimmed-mean', {'trim': 0.1})\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_new_file_is_a_new_rule(tmp_path):
    registry = RuleRegistry("selection", "dpcohort.selection.rules")
    folder = Path(sys.modules["dpcohort"].__file__).parent / "selection" / "rules"
    files = {path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py")}
    assert set(registry.built_in) == files


def test_a_package_announces_rules(installed):
    registry = REGISTRIES["aggregation"]
    assert {"last", "broken"} <= set(registry.names)
    assert "last" in registry
    assert registry.make("last", {"factor": 2.0}).factor == 2.0
    card = registry.card("last")
    assert (card.summary, card.home) == ("The last draw alone.", "plugin_of_this_test")
    # Nobody takes the place of a rule of this package.
    assert registry.find("mean").__module__ == "dpcohort.aggregation.rules.mean"
    with pytest.raises(InputError, match=r"'broken' is announced .* failed: AttributeError"):
        registry.find("broken")
    with pytest.raises(InputError, match="Did you mean 'last'"):
        registry.find("lasst")


def test_without_the_package_the_rule_is_unknown():
    assert "last" not in REGISTRIES["aggregation"].names
    with pytest.raises(PackageNotFoundError):
        distribution("plugin-of-this-test")


def test_a_class_of_ones_own_by_its_place(tmp_path, monkeypatch):
    (tmp_path / "own_rules_of_this_test.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    registry = REGISTRIES["aggregation"]
    try:
        assert registry.make("own_rules_of_this_test:Last", {}).factor == 1.0
        assert "own_rules_of_this_test:Last" in registry
        with pytest.raises(InputError, match="has no function 'Lost'"):
            registry.find("own_rules_of_this_test:Lost")
        with pytest.raises(InputError, match="Did you mean 'factor'"):
            registry.make("own_rules_of_this_test:Last", {"facter": 2})
    finally:
        sys.modules.pop("own_rules_of_this_test", None)


@pytest.mark.parametrize("name", [3, None, "", "no:such:thing"])
def test_what_is_no_name(name):
    assert name not in REGISTRIES["selection"]
    with pytest.raises(InputError, match="selection rule"):
        REGISTRIES["selection"].find(name)


def test_what_a_plan_fills_in_may_be_missing_in_a_check_only():
    registry = REGISTRIES["aggregation"]
    registry.check("importance-compensated", {})
    with pytest.raises(InputError, match="A plan knows it: use for_plan"):
        registry.make("importance-compensated", {})
    with pytest.raises(InputError, match="needs the setting 'bound'"):
        registry.check("clipped-mean", {})
    with pytest.raises(InputError, match="Did you mean 'sizes'"):
        registry.check("size-weighted", {"size": 3})

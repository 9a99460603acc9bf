# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

from dpcohort.consent import allow_code
from dpcohort.errors import InputError, VerificationError
from dpcohort.plugins import (
    RULES,
    RuleNameWarning,
    announced,
    check_settings,
    find_rule,
    is_rule,
    make_rule,
    named_function,
    naming_the_rule,
    overshadowed,
    rule_card,
    rule_names,
)
from dpcohort.selection._rules import Uniform

EVERY = [(kind, name) for kind, rules in RULES.items() for name in rules]

PLUGIN = '''
from dataclasses import dataclass
from dpcohort import plugin

@plugin("aggregation")
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
        "broken = plugin_of_this_test:Missing\npath = pathlib:Path\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("plugin_of_this_test", None)


@pytest.fixture
def announce(tmp_path, monkeypatch):
    """Installs a package that announces one rule."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(kind, name, place, *, package="rules-of-this-test"):
        info = tmp_path / f"{package.replace('-', '_')}_{kind}_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[dpcohort.{kind}]\n{name} = {place}\n")

    return install


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=[f"{k}-{n}" for k, n in EVERY])
def test_every_rule_says_what_it_needs_shows_and_comes_from(kind, name):
    card = rule_card(kind, name)
    assert card["name"] == name
    for words in (card[key] for key in ("needs", "leaks", "reference", "summary")):
        assert words
        assert words != "not said"
        assert "\n" not in words
    assert set(card) == {
        "kind", "name", "summary", "needs", "leaks", "reference", "settings", "home"
    }  # fmt: skip


def test_nothing_is_loaded_for_the_names():
    code = (
        "import sys\n"
        "from dpcohort.plugins import *\n"
        "assert 'best-threshold' in rule_names('selection')\n"
        "assert is_rule('aggregation', 'mean')\n"
        "assert not any(m.startswith(('torch', 'numpy.random._x', 'dpcohort.selection')) "
        "for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", list(RULES))
def test_every_rule_of_this_package_has_its_line(kind):
    """A class with a name and the members of its kind is found by that name."""
    package = importlib.import_module(f"dpcohort.{kind}")
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__.startswith(package.__name__)
        and isinstance(getattr(value, "reference", None), str)
    }
    assert {rule.name: rule for rule in classes} == {
        name: find_rule(kind, name) for name in RULES[kind]
    }


def test_a_package_announces_rules(installed):
    assert {"last", "broken"} <= set(rule_names("aggregation"))
    assert is_rule("aggregation", "last")
    assert make_rule("aggregation", "last", {"factor": 2.0}).factor == 2.0
    card = rule_card("aggregation", "last")
    assert (card["summary"], card["home"]) == ("The last draw alone.", "plugin_of_this_test")
    # Nobody takes the place of a rule of this package.
    assert find_rule("aggregation", "mean").__module__ == "dpcohort.aggregation._rule"
    with pytest.raises(InputError, match=r"'broken' is announced .* failed: AttributeError"):
        find_rule("aggregation", "broken")
    with pytest.raises(InputError, match="Did you mean 'last'"):
        find_rule("aggregation", "lasst")
    with pytest.raises(InputError, match=r"'path' is not allowed: .*plugin..aggregation"):
        find_rule("aggregation", "path")


def test_a_package_that_comes_and_goes_is_noticed(installed):
    """What is announced is remembered, but not longer than it is true."""
    assert "last" in rule_names("aggregation")
    assert "late" not in rule_names("aggregation")
    info = installed / "another_of_this_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: another-of-this-test\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text("[dpcohort.aggregation]\nlate = plugin_of_this_test:L\n")
    assert {"last", "late"} <= set(rule_names("aggregation"))
    assert "late" not in rule_names("selection")
    (installed / "plugin_of_this_test-1.0.dist-info").rename(installed / "gone")
    assert "last" not in rule_names("aggregation")
    assert "late" in rule_names("aggregation")


@pytest.mark.parametrize("name", [3, None, "", "no:such:thing"])
def test_what_is_no_name(name):
    assert not is_rule("selection", name)
    with pytest.raises(InputError, match="selection rule"):
        find_rule("selection", name)


def test_what_a_plan_fills_in_may_be_missing_in_a_check_only():
    check_settings("aggregation", "importance-compensated", {})
    with pytest.raises(InputError, match="A plan knows it: use for_plan"):
        make_rule("aggregation", "importance-compensated", {})
    with pytest.raises(InputError, match="needs the setting 'bound'"):
        check_settings("aggregation", "clipped-mean", {})
    with pytest.raises(InputError, match="Did you mean 'sizes'"):
        check_settings("aggregation", "size-weighted", {"size": 3})


def test_a_name_that_a_planned_and_an_adaptive_rule_use_must_be_told_apart(announce):
    """Both are named by the same key of a config."""
    announce("selection", "square", "here:Square")
    announce("adaptive", "square", "there:Square")
    for kind in ("selection", "adaptive"):
        with pytest.raises(InputError, match="more than one package: here:Square, there:Square"):
            find_rule(kind, "square")
    announce("aggregation", "round", "here:Round")
    announce("selection", "round", "dpcohort.selection._rules:Uniform")
    assert find_rule("selection", "round") is Uniform  # another key, another rule


@pytest.mark.parametrize(
    ("kind", "name", "taken"),
    [
        ("aggregation", "mean", "aggregation"),
        ("selection", "uniform", "selection"),
        ("adaptive", "uniform", "selection"),
        ("selection", "donated", "adaptive"),
    ],
)
def test_a_rule_of_another_package_never_takes_a_name_of_this_one_and_says_so(
    announce, kind, name, taken
):
    announce(kind, name, "plugin_of_this_test:Last", package="greedy-rules")
    words = f"'{name}' is that of dpcohort.*greedy-rules.*'plugin_of_this_test:Last'"
    with pytest.warns(RuleNameWarning, match=words):
        made = make_rule(taken, name, {})
    assert type(made).__module__.startswith("dpcohort.")
    with pytest.warns(RuleNameWarning, match=words):
        check_settings(taken, name, {})
    assert (name in RULES[kind]) == (kind == taken)
    assert name not in announced(kind)
    assert "'plugin_of_this_test:Last'" in overshadowed(kind)[name]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("selection", "plugin_of_this_test:Last", "marked with @dpcohort.plugin..selection"),
        ("adaptive", "plugin_of_this_test:Bare", "no adaptive rule.*lack name, check"),
        ("aggregation", "pathlib:Path", "pathlib is a module of Python itself"),
        ("aggregation", "plugin_of_this_test:Fails", "Fails failed in being made: ValueError: no"),
    ],
)
def test_a_class_that_is_no_such_rule(installed, kind, name, words):
    with (installed / "plugin_of_this_test.py").open("a") as file:
        file.write("\n@plugin('aggregation')\nclass Fails:\n")
        file.write("    def __init__(self):\n        raise ValueError('no')\n")
        file.write("@plugin('adaptive')\nclass Bare: pass\n")
    allow_code("plugin_of_this_test")
    with pytest.raises(InputError, match=words):
        make_rule(kind, name, {})


class Mine:
    """No rule of this package."""


def test_a_failure_of_a_foreign_rule_names_rule_method_and_line():
    message = r":Mine failed in select: KeyError: 'oops' \(test_plugins.py, line \d+\)"
    with pytest.raises(InputError, match=message), naming_the_rule(Mine(), "select"):
        raise KeyError("oops")


def test_errors_on_purpose_pass_and_bugs_of_this_package_stay_bugs():
    with pytest.raises(VerificationError), naming_the_rule(Mine(), "select"):
        raise VerificationError("told already")
    with pytest.raises(ZeroDivisionError), naming_the_rule(Uniform(), "select"):
        raise ZeroDivisionError


def test_a_module_in_the_current_folder_is_found_and_the_path_left_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "module_of_this_test.py").write_text("def answer():\n    return 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = list(sys.path)
    try:
        assert named_function("--step", "module_of_this_test:answer", example="a:b")() == 42
    finally:
        sys.modules.pop("module_of_this_test", None)
    assert sys.path == before


def test_a_module_that_fails_is_reported(tmp_path, monkeypatch):
    (tmp_path / "module_that_fails.py").write_text("raise RuntimeError('no luck')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="RuntimeError: no luck"):
        named_function("--step", "module_that_fails:load", example="a:b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module_here:load", "Importing no_such_module_here failed"),
        ("dpcohort.plugins:find_rules", "Did you mean 'find_rule'"),
        ("rich.text:annotations", "has no function 'annotations'"),
        ("math.sqrt", "module:function, as in a:b"),
    ],
)
def test_wrong_names_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        named_function("--step", text, example="a:b")

# SPDX-License-Identifier: Apache-2.0
"""What users type stays: names, commands, options, exit codes, keys, rules; more may come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMMANDS = json.loads((HERE / "surface.json").read_text())["commands"]


@pytest.fixture(scope="module")
def today(make):
    return make.surface()


def test_public_names(today, golden):
    import dpcohort

    assert set(golden("surface")["names"]) <= set(today["names"])
    assert all(hasattr(dpcohort, name) for name in golden("surface")["names"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_what_it_took(today, command):
    taken, then = today["commands"][command], COMMANDS[command]
    assert {name: taken.get(name) for name in then} == then
    new = [one for name, one in taken.items() if name not in then]
    assert not any(one["required"] for one in new)


def test_names_of_rules(today, golden):
    for group, rules in golden("surface")["rules"].items():
        for rule, settings in rules.items():
            assert set(settings) <= set(today["rules"][group][rule]), rule


def test_exit_codes(make, golden, tmp_path):
    assert make.exit_codes(tmp_path) == golden("surface")["exit codes"]


def test_every_key_of_a_config_is_accepted(golden):
    from dpcohort import load_config

    config = load_config(HERE / "base.toml")
    for changes in golden("surface")["accepted"]:
        values = config.with_overrides(changes).values
        for change in changes:
            section, _, key = change.partition("=")[0].partition(".")
            assert section in values
            assert not key or (key in values[section]) == (not change.endswith("=")), change


def test_other_packages_announce_rules_in_the_same_groups(make, golden, tmp_path, monkeypatch):
    groups = golden("surface")["groups"]
    info = tmp_path / "golden_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: golden-rules\nVersion: 1.0\n")
    entries = [
        f"[{group}]\n{group.split('.')[1]}-of-mine = golden_rules:{group.split('.')[1]}\n"
        for group in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(entries))
    code = [
        f"@plugin('{kind}')\nclass {kind}:\n    '''Mine.'''\n"
        for kind in (group.split(".")[1] for group in groups)
    ]
    text = "\n".join(["from dpcohort import plugin", *code])
    (tmp_path / "golden_rules.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    code, words = make.dpcohort("rules", "--json")
    assert code == 0, words
    for group in groups:
        kind = group.split(".")[1]
        assert f"{kind}-of-mine" in words

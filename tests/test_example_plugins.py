# SPDX-License-Identifier: Apache-2.0
"""The rules in examples/plugins: short, found by entry point and by place, and they train."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from dpcohort import make_plan
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.config import commented_config, loads_config
from dpcohort.consent import allow_code
from dpcohort.plugins import RULES, rule_card, rule_names
from dpcohort.runs import configured_job
from dpcohort.runs._job import make_job
from dpcohort.runs._training import train_job

FOLDER = Path(__file__).parents[1] / "examples" / "plugins"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
RULES = {kind: next(iter(PROJECT["entry-points"][f"dpcohort.{kind}"].items())) for kind in RULES}
SMALL = ["training.rounds=3", "training.cohort_size=3", "population.count=8"]


@pytest.fixture
def beside_them(monkeypatch):
    """The folder is where we are."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for place in FOLDER.glob("*.py"):
        sys.modules.pop(place.stem, None)


@pytest.fixture
def installed(tmp_path, monkeypatch, beside_them):
    """What an installer writes for the project, and the modules importable."""
    info = tmp_path / "dpcohort_example_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in entries.items())
            for group, entries in PROJECT["entry-points"].items()
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)


def trained(*changes):
    config = loads_config(commented_config("digits")).with_overrides([*SMALL, *changes])
    return train_job(configured_job(config, device="cpu"))


def config_change(kind, name):
    return f"{'aggregation' if kind == 'aggregation' else 'selection'}.rule={name}"


@pytest.mark.parametrize("kind", RULES)
def test_an_entry_point_is_found_and_trains(kind, installed):
    name, place = RULES[kind]
    assert name in rule_names(kind)
    assert rule_card(kind, name)["home"] == place.split(":")[0]
    run = trained(config_change(kind, name))
    assert run.is_finished
    assert name in str(run.settings["label"]) or place in str(run.settings["label"])


@pytest.mark.parametrize("kind", RULES)
def test_its_place_will_do_instead_of_a_name(kind, beside_them):
    name, place = RULES[kind]
    allow_code(place)
    assert name not in rule_names(kind)  # it is not installed
    assert trained(config_change(kind, f'"{place}"')).is_finished


def test_objects_do_as_well(beside_them):
    sys.path.append(str(FOLDER))
    try:
        from least_heard import LeastHeard
        from median import Median
        from square_root import SquareRoot
    finally:
        sys.path.remove(str(FOLDER))
    config = loads_config(commented_config("digits")).with_overrides(SMALL)
    population = config.population()
    plan = make_plan(population, config.training, selection=SquareRoot(power=0.2), seed=1)
    job = make_job(plan, "logistic", "digits", device="cpu", aggregation=Median(scale=0.5))
    assert train_job(job).is_finished
    fair = make_adaptive_plan(population, config.training, rule=LeastHeard(), seed=1)
    run = train_job(make_job(fair, "logistic", "digits", device="cpu"))
    assert run.ledger.draws.max() - run.ledger.draws.min() <= 2

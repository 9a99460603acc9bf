# SPDX-License-Identifier: Apache-2.0
"""The benchmark of real tables: its page holds its files, its splits are what it says they are."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from dpcohort.config import commented_config, loads_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "real_tables.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tables"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_committed_files(benchmark):
    text = (ROOT / "docs" / "how-to" / "tables.md").read_text()
    for table in benchmark.markdown(ROOT / "results" / "tables").split("\n\n"):
        assert table.strip() in text


def test_the_page_of_personal_models_shows_the_committed_files(benchmark):
    text = (ROOT / "docs" / "how-to" / "personalise.md").read_text()
    found = benchmark.kept_personal(ROOT / "results" / "tables")
    assert all(f"| {one['name']}, {one['metric']} | {one['clients']} |" in text for one in found)
    small = min(found, key=lambda one: one["clients"])  # intervals take a second each
    for line in benchmark.personal_markdown([small]).splitlines():
        assert line in text


def test_a_gain_is_told_with_how_sure_it_is(benchmark):
    dice = np.random.default_rng(0)
    other = dice.normal(5, 1, (5, 60))
    ours = other + 0.3 + dice.normal(0, 0.2, other.shape)
    mean, low, high = benchmark.over_clients_and_seeds(benchmark.median_gain, ours, other)
    assert 0.2 < low < mean < high < 0.4
    # The medians lie as far apart, but clients differ among themselves by more.
    mean, low, high = benchmark.over_clients_and_seeds(benchmark.between_medians, ours, other)
    assert low < 0.3 < high
    assert high - low > 0.2


def test_the_split_beside_flamby_is_its_own(benchmark):
    split = benchmark.flamby_split()
    names, counts = np.unique(split.data.clients, return_counts=True)
    # Its repository counts 486 training records, and its page these of each hospital.
    found = dict(zip(names.tolist(), counts.tolist(), strict=True))
    assert found == {"cleveland": 199, "hungarian": 172, "switzerland": 30, "va": 85}
    labels = np.asarray(split.data.test_labels)
    assert abs(labels[split.owners == "cleveland"].mean() - 139 / 303) < 0.01


def test_who_trains_alone_is_judged_on_its_own_records(benchmark, monkeypatch):
    config = loads_config(commented_config("heart-disease"))
    split = benchmark.split_of(config, 3)
    seen = []

    def trained(config, split, population, seed):
        (name,) = population.ids
        seen.append((name, set(split.data.clients.tolist()), population.sizes.tolist()))
        return np.full((len(split.owners), 2), float(len(seen)))

    monkeypatch.setattr(benchmark, "settings_for", lambda *_: ["training.rounds=2"])
    monkeypatch.setattr(benchmark, "outputs_of", trained)
    (outputs,) = benchmark.alone(config, [split], benchmark.Effort(1, 1, 2))
    for k, (name, holds, size) in enumerate(seen, start=1):
        assert holds == {name}
        assert size == [(split.data.clients == name).sum()]
        assert (outputs[split.owners == name] == k).all()
    assert len(seen) == 4

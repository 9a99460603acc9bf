# SPDX-License-Identifier: Apache-2.0
"""The benchmark of rules, with small settings: its configurations load and its files have rows."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from dpcohort.plugins import RULES

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "data.name=digits", "model.name=logistic", "model.options={}", "population.count=8",
    "population.epsilon=2.0", "training.rounds=2", "training.cohort_size=3",
    "training.batch_size=16", "training.dimension=650", "run.evaluate_every=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("rules", ROOT / "benchmarks" / "rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("data", ["fashion-mnist", "cifar10"])
@pytest.mark.parametrize("noise", ["paper", "tight"])
def test_the_configurations_are_those_of_the_recipes_at_s_30(benchmark, data, noise):
    config = benchmark.base_config(data, noise)
    assert config.data.name == data
    assert config.data.similarity == 30.0
    assert (config.contract.accountant, config.noise_model) == (
        noise, "paper" if noise == "paper" else "exact"
    )  # fmt: skip


def test_a_small_comparison_becomes_a_table(benchmark):
    config = benchmark.base_config("fashion-mnist", "tight", SMALL)
    sets = (("unbiased,privacy-aware", "mean"), ("unbiased", "trimmed-mean"))
    found = json.loads(json.dumps(benchmark.measured(config, seeds=1, device="cpu", sets=sets)))
    assert [row["aggregation"] for row in found["rows"]] == ["mean", "mean", "trimmed-mean"]
    lines = benchmark.markdown(found["rows"], found["rows"][:2]).splitlines()
    assert len(lines) == 5
    assert all(line.count("|") == 9 for line in lines)
    assert sum("| - | - |" in line for line in lines) == 1


def test_an_adaptive_rule_has_a_row(benchmark):
    config = benchmark.base_config("fashion-mnist", "tight", SMALL)
    found = benchmark.measured(config, seeds=1, device="cpu", sets=(("rpow-d", "mean"),))
    assert [row["selection"] for row in found["rows"]] == ["rpow-d"]


@pytest.mark.parametrize("data", ["fashion-mnist", "cifar10"])
@pytest.mark.parametrize("noise", ["paper", "tight"])
def test_no_committed_row_spends_more_than_was_promised(benchmark, data, noise):
    rows = benchmark.load(data, noise)
    assert rows
    assert all(0 < row["certified"] <= 1 and row["accuracy"]["count"] == 3 for row in rows)


def test_the_page_shows_the_committed_files(benchmark):
    text = benchmark.PAGE.read_text()
    assert benchmark.page(text) == text
    assert len(benchmark.load("cifar10", "paper")) >= 27


def test_the_rules_it_names_exist(benchmark):
    for selections, aggregations in benchmark.SETS:
        assert set(selections.split(",")) <= set(RULES["selection"])
        assert set(aggregations.split(",")) <= set(RULES["aggregation"])
    for selections, _ in benchmark.ADAPTIVE:
        assert set(selections.split(",")) <= set(RULES["adaptive"])

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv

import pytest

from dpcohort.config import commented_config

SHORT = [
    "--set", "training.rounds=3", "--set", "training.cohort_size=3", "--set", "population.count=8",
    "--set", "run.evaluate_every=3", "--device", "cpu",
]  # fmt: skip


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "digits.toml"
    path.write_text(commented_config("digits"))
    return path


def test_a_table_of_pairs_with_reasons_for_what_is_left_out(terminal, config, tmp_path):
    rules = ["--selection", "unbiased,threshold(threshold=2)"]
    rules += ["--aggregation", "mean,importance-compensated"]
    path = tmp_path / "table.csv"
    shown = terminal("compare-rules", config, *rules, "--seeds", 2, "--csv", path, *SHORT)
    assert "2 pairs of rules, 2 seeds each; 2 pairs left out." in shown
    assert "1/2 unbiased, mean: " in shown
    assert "noise/C" in shown
    assert "±" in shown
    assert "left out: unbiased with importance-compensated: the selection is unbiased" in shown
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["selection"] for row in rows] == ["unbiased", "threshold(threshold=2)"]
    assert 0 < float(rows[0]["certified"]) <= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--selection", "unbiassed"], "Did you mean 'unbiased'"),
        (["--aggregation", "meen"], "Did you mean 'mean'"),
        (["--selection", ""], "--selection = '' is not allowed"),
        (["--aggregation", "mean,"], "names of rules, or all"),
        (["--selection", "threshold"], "needs the setting 'threshold'"),
        (["--selection", "unbiased", "--aggregation", "size-weighted"], "size would count twice"),
    ],
)
def test_bad_rules_are_refused_before_any_training(terminal, config, arguments, words, tmp_path):
    shown = terminal("compare-rules", config, *arguments, "--out", tmp_path / "o", *SHORT, code=2)
    assert words in " ".join(terminal.errors.split())
    assert "1/" not in shown
    assert not (tmp_path / "o").exists()


def test_pairs_that_failed_stand_last(terminal, config):
    wild = ["--set", "optimiser.learning_rate=1e30", "--set", "optimiser.server_learning_rate=1e30"]
    rules = ["--selection", "unbiased", "--aggregation", "mean,clipped-mean(bound=1e-30)"]
    shown = terminal("compare-rules", config, *rules, "--seeds", 1, *SHORT, *wild)
    assert shown.startswith("2 pairs of rules, 1 seed each.")
    assert "not finite" in shown
    table = shown[shown.index("noise/C") :]
    assert table.index("clipped-mean") < table.index("failed")

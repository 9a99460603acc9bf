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

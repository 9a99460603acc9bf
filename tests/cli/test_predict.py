# SPDX-License-Identifier: Apache-2.0
"""The model of a run on a table of new rows."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from dpcohort.cli import main

CONFIG = """
[population]
count = 2
epsilon = { distribution = "choices", values = [8.0] }
delta = 1e-3
[training]
rounds = 20
cohort_size = 2
sampling_rate = 1.0
clip = 2.0
[data]
name = "wards.csv"
public = true
label = "sick"
labels = ["no", "yes"]
partition = "client"
client = "ward"
features = ["age", "smoker"]
bounds = { age = [0, 100] }
categories = { smoker = ["none", "some"] }
test_share = 0.2
[optimiser]
learning_rate = 1.0
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wards")
    rng = np.random.default_rng(3)
    ages = rng.integers(0, 101, 400)
    lines = [
        f"{'ab'[k % 2]},{age},{'some' if k % 3 else 'none'},{'yes' if age > 50 else 'no'}"
        for k, age in enumerate(ages)
    ]
    (folder / "wards.csv").write_text("ward,age,smoker,sick\n" + "\n".join(lines) + "\n")
    (folder / "wards.toml").write_text(CONFIG)
    assert main(["train", str(folder / "wards.toml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_a_table_without_label_and_client_gets_classes_and_probabilities(run, tmp_path, capsys):
    new = tmp_path / "new.csv"
    new.write_text("name,smoker,age\nann,some,4\nbob,pipe,98\ncy,none,120\ndi,,x\n")
    capsys.readouterr()
    assert main(["predict", str(run), str(new), "-o", str(tmp_path / "out.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["ann", "bob", "cy", "di"]
    assert [row["prediction"] for row in rows[:3]] == ["no", "yes", "yes"]
    for row in rows:
        chances = float(row["probability of no"]), float(row["probability of yes"])
        assert sum(chances) == pytest.approx(1)
        assert (row["prediction"] == "yes") == (chances[1] > 0.5)
    notes = capsys.readouterr().err
    assert "smoker: 1 cell is another value than was listed" in notes
    assert "age: 1 number is beyond [0, 100]" in notes
    assert "age: 1 cell holds no number" in notes


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("smoker,years", "column = 'age' is not allowed"),
        ("smoker,age,prediction", "has a column 'prediction' already"),
    ],
)
def test_a_table_of_other_columns_is_refused(run, tmp_path, capsys, header, words):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text(f"{header}\nsome,4,1\n"[: 99 if "prediction" in header else -3] + "\n")
    assert main(["predict", str(run), str(new), "-o", str(out)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_a_run_of_no_table_and_a_file_that_exists_are_refused(run, tmp_path, capsys):
    new = tmp_path / "new.csv"
    new.write_text("smoker,age\nsome,4\n")
    assert main(["predict", str(run), str(new), "-o", str(new)]) == 2
    assert "--force" in capsys.readouterr().err
    assert new.read_text() == "smoker,age\nsome,4\n"

# SPDX-License-Identifier: Apache-2.0
"""From a table with a person column to letters, over guards: the commands of a new user."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from dpcohort.cli import main
from dpcohort.deploy.flower import Federation, federate
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower.client_app import LocalGuards
from dpcohort.errors import InputError

WARDS = ["eye", "heart", "lung"]
FILLED = {
    r"^labels = .*": 'labels = ["no", "yes"]',
    r"^age = .*": "age = [0, 110]",
    r"^smokes = .*": 'smokes = ["never", "ever"]',
    r"^rounds = .*": "rounds = 12",
    r"^# \[evaluation\]": "[evaluation]",
    r"^# share = .*": "share = 0.3",
}


def command(capsys, *arguments) -> str:
    code = main([str(one) for one in arguments])
    told = capsys.readouterr()
    assert code == 0, told.err
    return told.out + told.err


@pytest.fixture
def kit(tmp_path, monkeypatch, capsys):
    """A kit for visits of patients, with each ward's own rows in its folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    rows = []
    for patient in range(500):
        ward, age = WARDS[patient % 3], int(rng.integers(20, 90))
        for _ in range(int(rng.choice([1, 1, 2, 3, 9]))):
            smokes, noise = rng.choice(["never", "ever", ""]), rng.normal(0, 12)
            sick = "yes" if age + noise + 10 * (smokes == "ever") > 58 else "no"
            rows.append([f"P{patient}", ward, age, smokes, "seen, well", sick])
    head = ["patient_id", "ward", "age", "smokes", "note", "sick"]
    with open("visits.csv", "w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    lines = [f"{ward},{epsilon},1e-5" for ward, epsilon in zip(WARDS, (10, 20, 20), strict=True)]
    (tmp_path / "clients.csv").write_text("\n".join(["id,epsilon,delta", *lines]) + "\n")
    said = command(capsys, "new", "visits.toml", "--from", "visits.csv", "--label", "sick",
                   "--client", "ward", "--category", "smokes", "--leave-out", "note")  # fmt: skip
    assert "persons are protected, with all their rows" in said
    text = (tmp_path / "visits.toml").read_text()
    for pattern, line in FILLED.items():
        text, count = re.subn(pattern, line, text, flags=re.M)
        assert count == 1, pattern
    (tmp_path / "visits.toml").write_text(text)
    command(capsys, "flower", "init", "kit", "--config", "visits.toml", "--trial")
    for ward in WARDS:
        place = client_folder(tmp_path / "kit", ward) / "data.csv"
        with open(place, "w", newline="") as file:
            csv.writer(file).writerows([head, *(row for row in rows if row[1] == ward)])
        place.chmod(0o600)
    return tmp_path / "kit"


def test_from_a_table_with_persons_to_letters_over_guards(kit, tmp_path, capsys):
    federation = Federation.load(kit / "server/federation.toml")
    with LocalGuards(kit / "clients") as guards:
        run = federate(federation, guards.transport(federation), out="run", poll=0.01)
    assert run.evaluation["unit"] == "person"
    assert run.evaluation["in_all"]["accuracy"]["low"] > 0.5
    said = [command(capsys, "verify", "run", "--require", "private")]
    for ward in WARDS:
        receipt = json.loads(command(capsys, "receipt", "run", ward, "--json"))
        assert (receipt["kind"], receipt["protects"], receipt["holds"]) == (
            "private", "person", True,
        )  # fmt: skip
        assert receipt["charged"]["paid"][0]["what"] == "evaluation"
        said.append(command(capsys, "receipt", "run", ward, "--letter", f"{ward}.html"))
        letter = (tmp_path / f"{ward}.html").read_text()
        assert "all records of one person" in letter
        said.append(letter)
    command(capsys, "report", "run", "-o", "report.html")
    said.append((tmp_path / "run/result.json").read_text())
    assert not any("not private" in one.lower() for one in said)
    watched = json.loads(command(capsys, "watch", "run", "--json"))
    assert watched["evaluation"]["in_all"] == run.evaluation["in_all"]


def test_guards_that_use_rows_of_a_person_otherwise_are_named(kit, tmp_path):
    terms = client_folder(kit, "eye") / "terms.toml"
    terms.write_text(terms.read_text().replace("rows_per_person = 5 ", "rows_per_person = 9 "))
    federation = Federation.load(kit / "server/federation.toml")
    with (
        LocalGuards(kit / "clients") as guards,
        pytest.raises(InputError, match=r"eye: rows_per_person of its \[persons\] is 9, and 5"),
    ):
        federate(federation, guards.transport(federation), out=tmp_path / "run", poll=0.01)
    assert not (tmp_path / "run").exists()

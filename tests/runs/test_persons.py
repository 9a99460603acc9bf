# SPDX-License-Identifier: Apache-2.0
"""Runs of a configuration whose unit is the person: sizes, batches, receipts, what is refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpcohort import Contract, Population, Training, make_plan
from dpcohort.adaptive import ReportTerms
from dpcohort.cli import main
from dpcohort.config import load_config
from dpcohort.data import PersonTerms, dataset_from_arrays
from dpcohort.data._arrays import load_arrays
from dpcohort.errors import DpcohortError, InputError
from dpcohort.runs import configured_data, configured_job, train, verify_run
from dpcohort.runs._chooser import LossMeter
from dpcohort.runs._training import train_job
from dpcohort.tuning import tune_charged

CONFIG = """
[population]
clients = "clients.csv"
[training]
rounds = 6
cohort_size = 2
sampling_rate = 0.5
clip = 1.0
[schedule]
seed = 1
[data]
name = "visits.csv"
label = "sick"
labels = ["no", "yes"]
client = "ward"
person = "patient_nbr"
test_share = 0.3
test_public = true
[data.bounds]
age = [0, 100]
dose = [0, 10]
[model]
name = "logistic"
"""


@pytest.fixture
def visits():
    """Visits of 90 people to two wards; some come forty times, some to both."""
    rng = np.random.default_rng(7)
    people = np.repeat(
        np.arange(90), rng.choice([1, 1, 2, 3, 40], 90, p=[0.3, 0.3, 0.2, 0.15, 0.05])
    )
    order = rng.permutation(len(people))
    wards = np.where(people % 5 == 0, rng.integers(0, 2, len(people)), people % 2)
    return {
        "patient_nbr": (people[order] + 1000).tolist(),
        "ward": np.array(["east", "west"])[wards[order]].tolist(),
        "age": rng.integers(0, 100, len(people)).tolist(),
        "dose": rng.uniform(0, 10, len(people)).tolist(),
        "sick": rng.choice(["no", "yes"], len(people)).tolist(),
    }


@pytest.fixture
def config(tmp_path, visits):
    def made(text=CONFIG, **columns):
        table = visits | columns
        rows = zip(*table.values(), strict=True)
        lines = [",".join(table), *(",".join(map(str, row)) for row in rows)]
        (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
        (tmp_path / "clients.csv").write_text("id,epsilon,delta\neast,4,1e-3\nwest,8,1e-3\n")
        (tmp_path / "my.toml").write_text(text)
        return load_config(tmp_path / "my.toml")

    return made


def test_persons_are_the_size_of_a_client_and_nobody_is_on_both_sides(config, visits):
    read = config()
    data = configured_data(read)
    job = configured_job(read, data=data, device="cpu")
    assert job.plan.contract.unit.name == "person"
    both = Counter(zip(visits["ward"], visits["patient_nbr"], strict=True))
    assert sum(job.plan.population.sizes) < len(both) < len(visits["ward"])
    rows = data.persons.rows
    assert rows.shape == (len(data), 5)
    doses = ((2 * np.array(visits["dose"]) - 10) / 10).astype(np.float32).tolist()
    whose = dict(zip(doses, visits["patient_nbr"], strict=True))
    sides = [
        {whose[row[1]] for row in rows.tolist()} for rows in (data.train_inputs, data.test_inputs)
    ]
    assert sides[0]
    assert not sides[0] & sides[1]
    assert data.input_shape == (2,)
    # Whole persons, each with one client, and batches of so many persons.
    for k, name in enumerate(job.plan.population.ids):
        assert {*data.record_clients[job.partition.client(k)]} == {name}
    assert job.plan.batch_sizes.tolist() == [round(0.5 * n) for n in job.plan.population.sizes]


def test_rows_of_a_person_are_chosen_by_itself_alone(config, visits):
    """What others bring, and who they are, changes nothing of the rows that are used."""
    few = {str(one) for one in range(1000, 1030)}

    def rows_by_person(table):
        names = np.array(table["patient_nbr"]).astype(str)
        data = dataset_from_arrays(
            "x", train_inputs=np.array(table["dose"])[:, None],
            train_labels=np.zeros(len(names), int), test_inputs=[[0.0]], test_labels=[0], classes=2,
            persons=names, clients=table["ward"], person_terms=PersonTerms(rows_per_person=3),
        )  # fmt: skip
        return {
            (data.clients[own[0]], names[own[0]]): data.train_inputs[own[own >= 0], 0].tolist()
            for own in data.persons.rows
        }

    whole = rows_by_person(visits)
    kept = [i for i, one in enumerate(visits["patient_nbr"]) if str(one) in few]
    part = rows_by_person({key: [cells[i] for i in kept] for key, cells in visits.items()})
    assert all(whole[who] == rows for who, rows in part.items())
    assert max(map(len, whole.values())) == 3


@pytest.mark.parametrize("partition", ["paper", "dirichlet"])
def test_dealt_partitions_hold_whole_persons(config, partition):
    text = CONFIG.replace(
        'clients = "clients.csv"',
        'count = 6\nepsilon = {distribution="uniform", low=1, high=8}\ndelta = 1e-4\nseed = 0',
    )
    more = f'features = ["age", "dose"]\npartition = "{partition}"\n' + (
        "alpha = 0.5\n" if partition == "dirichlet" else ""
    )
    read = config(text.replace('client = "ward"\n', more))
    data = configured_data(read)
    job = configured_job(read, data=data, device="cpu")
    held = np.concatenate([job.partition.client(k) for k in range(6)])
    assert sorted(held.tolist()) == sorted({*held.tolist()})
    assert len(held) == job.plan.population.sizes.sum() <= len(data)


def test_a_private_run_says_its_unit_everywhere(config, tmp_path, capsys):
    run = train_job(configured_job(config(), device="cpu"), out=tmp_path / "run")
    receipt = run.receipts()[0]
    assert receipt.unit == "all records of one person with this client"
    assert " persons (rate" in receipt.text()
    assert verify_run(tmp_path / "run").holds
    letter = tmp_path / "letter.html"
    assert main(["receipt", str(tmp_path / "run"), receipt.client, "--letter", str(letter)]) == 0
    words = " ".join(letter.read_text().split())
    assert "all records of one person are taken out" in words
    assert "a person with 5 records" not in words
    other = run.plan.population.ids[1]
    assert f"with {other}, which promised most of the others, ε = 12" in words
    assert main(["explain", "east", str(tmp_path / "run")]) == 0
    assert " persons and promised" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes",
    [
        ["privacy.trust=distributed", "privacy.colluding=0"],
        ["selection.rule=power-of-choice", "selection.d=2"],
        ["data.person_rows=mean", "run.engine=reference"],
        ["privacy.sampler=balls-in-bins"],
        ["optimiser.local=fedprox", "optimiser.local_settings={mu=0.1}", "training.local_steps=2"],
    ],
    ids=lambda changes: changes[0],
)
@pytest.mark.parametrize("private", [False, True])
def test_every_kind_of_run_protects_persons(config, changes, private, tmp_path):
    job = configured_job(
        config().with_overrides(changes), device="cpu", simulate=None if private else 0
    )
    run = train_job(job, out=tmp_path / "run")
    assert run.rounds_done == 6
    assert all(one.protects.name == "person" and one.holds for one in run.receipts())
    assert verify_run(tmp_path / "run").holds


def test_a_report_and_a_trial_count_a_person_once(config):
    """The same weights; all rows of a person with forty are exchanged."""
    read = config()
    job = configured_job(read, device="cpu")
    terms = ReportTerms(loss_bound=3.0)
    data, parameters = job.data, torch.zeros(job.plan.training.dimension)
    most = int(np.argmax((data.persons.rows >= 0).sum(1)))
    changed = data.train_labels.copy()
    own = data.persons.rows[most]
    changed[own[own >= 0]] = 1 - changed[own[own >= 0]]
    k = next(k for k in (0, 1) if most in job.partition.client(k))
    asked = {k: np.flatnonzero(job.partition.client(k) == most)}
    sums = []
    for labels, scale in ((data.train_labels, 0.0), (changed, 50.0)):
        records = replace(job, data=replace(data, train_labels=labels)).records()
        meter = LossMeter(job.trained, records, loss=job.loss)
        at = scale * torch.arange(len(parameters)) + parameters
        (total,) = meter.raw_centred_sums(at, asked, terms, units=np.array([1e-4]))
        sums.append(total * 1e-4)
    assert abs(sums[0] - sums[1]) <= terms.loss_bound
    tuned = tune_charged(
        read.with_overrides(["privacy.neighbours=zero-out"]), share=0.5, trials=2.0, most_rounds=3
    )
    assert tuned.charge.unit == "person"


def test_an_estimate_of_bounds_counts_a_person_once(config, tmp_path, visits):
    """Four people with five hundred rows each, beyond all others, cannot move the bounds."""
    many = 2000
    rows = {
        "patient_nbr": [
            *range(10_000, 13_000),
            *range(10_000, 10_300),
            *[7, 8, 9, 6] * (many // 4),
        ],
        "ward": ["east"] * (3300 + many),
        "age": [50] * (3300 + many),
        "dose": [*[5.0] * 3300, *[95.0] * many],
        "sick": ["no", "yes"] * ((3300 + many) // 2),
    }
    read = config(CONFIG.replace("dose = [0, 10]\n", ""), **rows)
    (tmp_path / "clients.csv").write_text("id,epsilon,delta\neast,8,1e-4\n")
    found = {}
    for unit in ("person", "record"):
        out = tmp_path / unit / "bounds.json"
        out.parent.mkdir()
        said = ["--range", "dose=0:100", "-o", str(out), "--set", f"privacy.unit={unit}"]
        assert main(["data", "bounds", str(read.path), *said, "--simulate", "0"]) == 0
        found[unit] = json.loads(out.read_text())
    ends = {unit: estimate["result"]["bounds"]["dose"][1] for unit, estimate in found.items()}
    assert ends["person"] < 20 < 90 < ends["record"]
    assert found["person"]["charge"]["unit"] == "person"


BAD = {
    "a person column that is missing": ({}, ["data.person=patient"], "'patient' is not allowed"),
    "a constant": ({"patient_nbr": 7}, [], "patient_nbr has one value in all rows"),
    "different in every row": ({"patient_nbr": None}, [], "different in every row: it names"),
    "a blank": ({"patient_nbr": ""}, [], "missing in the column patient_nbr.*blank_person"),
    "a cap of 0": ({}, ["data.rows_per_person=0"], "rows_per_person.*0"),
    "another way to add": ({}, ["data.person_rows=max"], "person_rows.*max"),
    "the label": ({}, ["data.person=sick"], "names 'sick', the label"),
    "as a feature": ({}, ["data.features=['patient_nbr','age']"], "person and no feature"),
    "as a feature of nobody": (
        {}, ["data.person=", "data.bounds.patient_nbr=[0,1]"], "by its name says whose a row is"
    ),
    "a unit without persons": ({}, ["data.person=", "privacy.unit=person"], "person says whose"),
    "an unknown unit": ({}, ["privacy.unit=family"], "unit.*family"),
    "clients": ({}, ["privacy.unit=client"], "unit.*client"),
    "persons of an embedded set": ({}, ["data.name=digits"], "digits"),
    "another size": ("id,size,epsilon,delta\neast,9,4,1e-3\nwest,9,8,.1\n", [], "training persons"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_persons_that_cannot_be_used_are_refused_before_anything_is_spent(
    case, config, visits, tmp_path
):
    columns, changes, words = BAD[case]
    given = {}
    if isinstance(columns, dict):
        for name, cell in columns.items():
            cells = [cell] * len(visits[name]) if cell else list(range(len(visits[name])))
            given[name] = [cell, *visits[name][1:]] if cell == "" else cells
    path = config(**given).path
    if isinstance(columns, str):
        (tmp_path / "clients.csv").write_text(columns)
    with pytest.raises(DpcohortError, match=words) as refused:
        configured_job(load_config(path).with_overrides(changes), device="cpu")
    assert str(refused.value).count("\n") == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "clients.csv",
        "my.toml",
        "visits.csv",
    ]


def test_blank_persons_may_be_persons_of_their_own(config, visits):
    names = ["", "", *visits["patient_nbr"][2:]]
    data = configured_data(
        config(CONFIG + "", patient_nbr=names).with_overrides(["data.blank_person=own"])
    )
    whole = configured_data(config(patient_nbr=[*"ab", *visits["patient_nbr"][2:]]))
    assert abs(len(data) - len(whole)) <= 2


def test_an_id_is_no_feature_and_what_it_would_protect_is_said(config):
    read = config(CONFIG.replace('person = "patient_nbr"\n', ""))
    data = configured_data(read)
    assert data.input_shape == (2,)
    (words,) = [one for one in data.remarks if "patient_nbr" in one]
    assert 'Say person = "patient_nbr"' in words
    assert "are of persons with several" in words
    hidden = configured_data(read.with_overrides(["data.test_public=false"]))
    assert not any("several." in one.split("less.")[1] for one in hidden.remarks)


def test_arrays_say_whose_their_rows_are(tmp_path):
    rows = {"train_inputs": np.zeros((6, 2)), "train_labels": [0, 1] * 3, "classes": 2}
    rows |= {"test_inputs": np.zeros((2, 2)), "test_labels": [0, 1]}
    np.savez(tmp_path / "own.npz", **rows, who=[1, 1, 2, 2, 3, 3], test_who=[4, 5])
    assert len(load_arrays(tmp_path / "own.npz", person="who")) == 3
    np.savez(tmp_path / "both.npz", **rows, who=[1, 1, 2, 2, 3, 3], test_who=[3, 5])
    with pytest.raises(InputError, match="somebody has rows in training and test"):
        load_arrays(tmp_path / "both.npz", person="who")
    with pytest.raises(InputError, match="person = 'whose'"):
        load_arrays(tmp_path / "own.npz", person="whose")


def test_data_and_plan_must_be_about_the_same_unit():
    data = dataset_from_arrays(
        "x", train_inputs=np.eye(8), train_labels=[0, 1] * 4, test_inputs=np.eye(8)[:2],
        test_labels=[0, 1], classes=2, persons=list("aabbccdd"),
    )  # fmt: skip
    people = Population.from_arrays(sizes=[2, 2], epsilon=[4, 8], delta=1e-3)
    settings = Training(rounds=2, cohort_size=1, sampling_rate=1.0, dimension=18)
    with pytest.raises(InputError, match="unit of the plan is the record"):
        train(make_plan(people, settings, seed=0), "logistic", data, device="cpu")
    plan = make_plan(people, settings, seed=0, accountant=Contract(unit="person"))
    assert train(plan, "logistic", data, device="cpu").rounds_done == 2
    with pytest.raises(InputError, match="unit of the plan is the person"):
        train(plan, "logistic", replace(data, persons=None), device="cpu")

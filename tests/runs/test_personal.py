# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan, train
from dpcohort.config import commented_config, loads_config
from dpcohort.data import column_partition, dataset_from_arrays, load_dataset
from dpcohort.errors import InputError
from dpcohort.runs import configured_job, personal_model, personal_results, train_side_by_side
from dpcohort.runs.job import make_job
from dpcohort.tasks import Task

SHORT = ["training.rounds=4", "run.evaluate_every=4"]


@pytest.fixture(scope="module")
def hospitals():
    config = loads_config(commented_config("heart-disease")).with_overrides(SHORT)
    job = configured_job(config, device="cpu")
    return job, train_side_by_side([job])[0]


@pytest.fixture(scope="module")
def rents():
    """Numbers of two towns that differ in their level."""
    dice = np.random.default_rng(0)
    x = dice.uniform(-1, 1, (260, 3)).astype(np.float32)
    town = np.repeat(["east", "west"], 130)
    y = np.clip(x @ [0.3, -0.2, 0.1] + np.where(town == "east", 0.4, -0.4), -1, 1)
    task = Task(kind="regression", outputs=1, bounds=(-1.0, 1.0))
    data = dataset_from_arrays(
        "rents", train_inputs=x[::2], train_labels=y[::2], test_inputs=x[1::2],
        test_labels=y[1::2], task=task, clients=town[::2],
    )  # fmt: skip
    return replace(data, test_clients=town[1::2])


def trained(data, model="logistic", **options):
    split = column_partition(data.clients)
    people = Population.from_arrays(ids=split.names, sizes=split.sizes, epsilon=4.0, delta=1e-4)
    dimension = {"logistic": 4, "mlp": 3 * 5 + 5 + 5 + 1}[model]
    settings = Training(rounds=4, cohort_size=2, sampling_rate=1.0, dimension=dimension)
    plan = make_plan(people, settings, seed=0)
    return train(plan, model, data, partition=split, device="cpu", model_options=options)


def test_a_pulled_model_is_the_ridge_solution(rents):
    """Of a squared loss the personal model has a closed form."""
    run, own = trained(rents), rents.clients == "east"
    x, y = rents.train_inputs[own], rents.train_labels[own]
    design = np.c_[x, np.ones(len(x))].astype(np.float64)
    common = np.append(run.scored_weights["1.weight"][0], run.scored_weights["1.bias"])
    for pull in (0.0, 0.1, 3.0):
        found = personal_model(run, x, y, pull=pull, steps=400)
        left = design.T @ design / len(x) + pull * np.eye(4)
        exact = np.linalg.solve(left, design.T @ y / len(x) + pull * common)
        assert np.append(found["1.weight"][0], found["1.bias"]) == pytest.approx(exact, abs=2e-3)


def test_an_endless_pull_is_the_common_model(rents):
    run = trained(rents)
    x, y = rents.train_inputs[:50], rents.train_labels[:50]
    for pull, away in ((math.inf, 0.0), (1e9, 1e-6)):
        found = personal_model(run, x, y, pull=pull)
        assert set(found) == set(run.scored_weights)
        for name, value in run.scored_weights.items():
            assert np.abs(found[name] - value).max() <= away


def test_fine_tuning_leaves_all_but_the_last_layer(rents):
    run = trained(rents, "mlp", hidden=[5])
    x, y = rents.train_inputs[:60], rents.train_labels[:60]
    found = personal_model(run, x, y, method="fine-tune", pull=0.0, steps=20)
    changed = [name for name, value in run.scored_weights.items() if (found[name] != value).any()]
    names = list(run.scored_weights)
    assert changed == names[-2:]
    everything = personal_model(run, x, y, pull=0.0, steps=20)
    assert all((everything[name] != run.scored_weights[name]).any() for name in names)


def test_towns_that_differ_gain_over_the_common_model_and_not_by_their_test_records(rents):
    split = column_partition(rents.clients)
    run = trained(rents)
    job = make_job(run.plan, "logistic", rents, partition=split, device="cpu")
    found = personal_results(job, run, steps=200)
    for client in found["clients"].values():
        assert client["personal"] < 0.5 * client["common"]  # RMSE
    assert "SIMULATION ONLY" in found["stamp"]
    other = replace(rents, test_labels=-rents.test_labels)
    again = personal_results(replace(job, data=other), run, steps=200)
    for name, client in found["clients"].items():
        assert again["clients"][name]["chosen"] == client["chosen"]
        assert again["clients"][name]["personal"] != client["personal"]


def test_without_owners_test_records_count_as_among_a_clients_own():
    """A client of one class is judged by that class."""
    digits = load_dataset("digits")
    names = np.where(digits.train_labels == 3, "threes", "others")
    data = replace(digits, clients=names)
    split = column_partition(names)
    people = Population.from_arrays(ids=split.names, sizes=split.sizes, epsilon=4.0, delta=1e-4)
    settings = Training(rounds=2, cohort_size=2, sampling_rate=1.0, dimension=650)
    plan = make_plan(people, settings, seed=0)
    job = make_job(plan, "logistic", data, partition=split, device="cpu")
    (run,) = train_side_by_side([job])
    found = personal_results(job, run, pull=math.inf, steps=1)
    is_three = digits.test_labels == 3
    right = run.predict(digits.test_inputs) == digits.test_labels
    assert found["clients"]["threes"]["common"] == pytest.approx(right[is_three].mean())
    assert found["clients"]["threes"]["personal"] == found["clients"]["threes"]["common"]


def test_nothing_is_made_in_a_private_run(hospitals):
    job, run = hospitals
    with pytest.raises(InputError, match="private"):
        personal_results(replace(job, private=True), run)


def test_what_cannot_be_judged_or_used_is_refused(hospitals, rents):
    job, run = hospitals
    with pytest.raises(InputError, match="does not say whose they are"):
        personal_results(replace(job, data=replace(rents, test_clients=None)), run)
    with pytest.raises(InputError, match="one client a test record"):
        replace(rents, test_clients=rents.test_clients[1:])
    for pull in (-1, math.nan, "strong", True):
        with pytest.raises(InputError, match="from 0"):
            personal_results(job, run, pull=pull)
    with pytest.raises(InputError, match="steps = 0"):
        personal_model(run, job.data.train_inputs, job.data.train_labels, steps=0)

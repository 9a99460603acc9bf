# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpcohort import Population, Training, make_plan, train
from dpcohort.config import commented_config, loads_config
from dpcohort.data import column_partition, dataset_from_arrays, load_dataset
from dpcohort.errors import InputError
from dpcohort.runs import configured_job, train_side_by_side
from dpcohort.runs._job import make_job
from dpcohort.tasks import Task
from dpcohort_lab.personal import personal_model, personal_results

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
        test_labels=y[1::2], task=task, clients=town[::2], public=True,
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


def test_a_pulled_model_of_classes_is_where_the_slope_is_zero(hospitals):
    """Small linear models are fitted to the end, however few the steps."""
    job, run = hospitals
    x, y = job.data.train_inputs[:90], job.data.train_labels[:90]
    found = personal_model(run, x, y, pull=0.05, steps=1)
    layer = torch.nn.Linear(17, 2)
    layer.load_state_dict({k[2:]: torch.from_numpy(v) for k, v in found.items()})
    inputs = torch.from_numpy(np.array(job.data.normalised(x)))
    torch.nn.functional.cross_entropy(layer(inputs), torch.from_numpy(y)).backward()
    for name, value in layer.named_parameters():
        away = found[f"1.{name}"] - run.scored_weights[f"1.{name}"]
        assert np.abs(value.grad.numpy() + 0.05 * away).max() < 1e-4
        assert np.abs(away).max() > 0.01


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
        assert again["clients"][name]["shares"] == client["shares"]
        assert again["clients"][name]["personal"] != client["personal"]


@pytest.fixture(scope="module")
def villages():
    """Levels and slopes that differ a little, of 30 clients with 16 training records each."""
    dice = np.random.default_rng(3)
    names = np.repeat([f"v{k:02d}" for k in range(30)], 40)
    x = dice.uniform(-1, 1, (1200, 5)).astype(np.float32)
    slopes = np.array([0.4, -0.3, 0.2, 0.2, -0.2]) + 0.05 * dice.normal(size=(30, 5))
    level = np.repeat(0.12 * dice.normal(size=30), 40)
    y = (x * np.repeat(slopes, 40, 0)).sum(1) + level + 0.15 * dice.normal(size=1200)
    trains = np.arange(1200) % 5 < 2
    task = Task(kind="regression", outputs=1, bounds=(-1.0, 1.0))
    data = dataset_from_arrays(
        "villages", train_inputs=x[trains], train_labels=np.clip(y[trains], -1, 1),
        test_inputs=x[~trains], test_labels=np.clip(y[~trains], -1, 1), task=task,
        clients=names[trains], public=True,
    )  # fmt: skip
    return replace(data, test_clients=names[~trains])


def test_clients_that_differ_a_little_gain_over_both(villages):
    """Partial pooling: neither the common model nor the client's own records say it all."""
    split = column_partition(villages.clients)
    people = Population.from_arrays(ids=split.names, sizes=split.sizes, epsilon=8.0, delta=1e-4)
    settings = Training(rounds=60, cohort_size=30, sampling_rate=1.0, dimension=6, clip=0.5)
    plan = make_plan(people, settings, seed=0)
    job = make_job(plan, "logistic", villages, partition=split, device="cpu")
    (run,) = train_side_by_side([job])
    found = personal_results(job, run)
    mine, other = found["personal"]["median"], (found["common"]["median"], found["alone"]["median"])
    assert mine < 0.97 * min(other), (mine, other)
    for client in found["clients"].values():
        assert list(client["shares"]) == ["common", "pulled", "alone"]
        assert sum(client["shares"].values()) == pytest.approx(1)


def test_a_layer_with_something_after_it_is_not_taken_for_linear(rents):
    """Means of such models, and fits by their slopes, would be wrong."""
    run, own = trained(rents), rents.clients == "east"
    bent = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 1), torch.nn.Tanh())
    x, y = rents.train_inputs[own], rents.train_labels[own]
    few, many = (personal_model(run, x, y, pull=0.1, steps=n, model=bent) for n in (1, 200))
    assert np.abs(few["1.weight"] - many["1.weight"]).max() > 1e-3  # by steps
    few, many = (personal_model(run, x, y, pull=0.1, steps=n) for n in (1, 200))
    assert (few["1.weight"] == many["1.weight"]).all()


def test_one_record_tells_nothing_that_could_be_checked(rents):
    run = trained(rents)
    found = personal_model(run, rents.train_inputs[:1], rents.train_labels[:1])
    for name, value in run.scored_weights.items():
        assert (found[name] == value).all()


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


def test_a_client_without_test_records_is_not_judged(hospitals):
    job, run = hospitals
    first = job.plan.population.ids[0]
    owners = np.where(job.data.test_clients == first, "nobody", job.data.test_clients)
    found = personal_results(
        replace(job, data=replace(job.data, test_clients=owners)), run, pull=math.inf, steps=1
    )
    assert set(found["clients"]) == set(job.plan.population.ids) - {first}


def test_nothing_is_made_in_a_private_run(hospitals):
    job, run = hospitals
    with pytest.raises(InputError, match="private"):
        personal_results(replace(job, simulate=None), run)


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

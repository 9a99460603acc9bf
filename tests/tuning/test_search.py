# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.data import dataset_from_arrays, load_dataset
from dpcohort.errors import InputError
from dpcohort.tasks import Task
from dpcohort.tuning import PROBLEMS, stand_in, tune
from dpcohort.tuning import _search as search

SMALL = {"seeds": 1, "problems": PROBLEMS[:1], "most_rounds": 2, "device": "cpu"}


@pytest.fixture
def config():
    return loads_config(commented_config("digits"))


def test_source_none_looks_at_no_record(config, monkeypatch):
    first = tune(config, **SMALL)
    digits = load_dataset("digits")
    rng = np.random.default_rng(0)
    other = replace(
        digits,
        train_inputs=rng.permuted(digits.train_inputs, axis=0),
        train_labels=rng.permutation(digits.train_labels),
        test_inputs=digits.test_inputs[::-1],
    )
    monkeypatch.setattr(search, "configured_data", lambda _: other)
    again = tune(config, **SMALL)
    assert again.to_dict() == first.to_dict()
    assert first.source == "none"
    assert "nothing was spent" in first.words
    assert first.record() == ["tuning.source=none"]


def test_the_choice_loses_least_to_the_best_on_each_set():
    scores = {1.0: (0.9, 0.2), 2.0: (0.85, 0.6), 3.0: (0.5, 0.62)}
    tried = {search.Settings(path=path): found for path, found in scores.items()}
    assert search._robust(tried).path == 2.0


def test_public_records_are_those_that_were_named_and_no_others(config):
    with pytest.raises(InputError, match="no client is public"):
        tune(config, source="public", **SMALL)
    found = tune(config, source="public", public="test", **SMALL)
    assert (found.source, found.sets) == ("public", ("public 0",))
    assert "no longer judge" in found.records
    assert "tuning.records=" in found.record()[1]
    shared = config.with_overrides(["data.public_share=0.2", "population.total_size="])
    data = load_dataset("digits")
    population = search.population_to_train(shared, data)
    held = search._public_clients(shared, data, population)
    samples, words = search.public_samples(shared, data, population, None, 1)
    rows = {row.tobytes() for row in data.normalised(data.train_inputs[held])}
    assert "public clients" in words
    assert {row.tobytes() for row in samples[0][2].train_inputs} <= rows
    assert {row.tobytes() for row in samples[0][2].test_inputs} <= rows


def test_public_records_of_another_shape_or_too_few_are_refused(config, tmp_path):
    inputs, labels = np.zeros((50, 3), np.float32), np.arange(50) % 10
    path = tmp_path / "other.npz"
    np.savez(path, train_inputs=inputs, train_labels=labels, test_inputs=inputs, test_labels=labels)
    with pytest.raises(InputError, match="records of shape"):
        tune(config, source="public", public=str(path), **SMALL)
    digits = load_dataset("digits")
    few = tmp_path / "few.npz"
    np.savez(
        few,
        train_inputs=digits.train_inputs[:20],
        train_labels=np.arange(20) % 10,
        test_inputs=digits.test_inputs[:5],
        test_labels=np.arange(5),
    )
    with pytest.raises(InputError, match="25 public records"):
        tune(config, source="public", public=str(few), **SMALL)


@pytest.mark.parametrize(
    "task",
    [
        Task(kind="multi-label", outputs=3),
        Task(kind="regression", outputs=1, bounds=(0.0, 30.0)),
        Task(kind="counts", outputs=1),
    ],
    ids=lambda task: task.kind,
)
def test_stand_ins_have_the_shape_and_task_of_the_data(task):
    labels = np.zeros((6, 3)) if task.kind == "multi-label" else np.zeros(6)
    data = dataset_from_arrays(
        "own",
        train_inputs=np.ones((6, 4)),
        train_labels=labels,
        test_inputs=np.ones((6, 4)),
        test_labels=labels,
        task=task,
    )
    for problem in PROBLEMS:
        made = stand_in(data, problem)
        assert (made.task, made.input_shape, len(made)) == (task, (4,), 6)
        assert np.unique(made.test_labels).size > 1
    assert not np.array_equal(
        stand_in(data, PROBLEMS[0], seed=1).train_inputs, stand_in(data, PROBLEMS[0]).train_inputs
    )


def test_a_setting_that_diverges_scores_nothing_and_spoils_no_other(config):
    bench = search.Bench(
        config, config.population(), search.stand_ins(load_dataset("digits"), PROBLEMS[:1], [0])
    )
    wild = search.Settings(path=3e40, rounds=3, clip=1e10)
    fine = search.Settings(path=30.0, rounds=3)
    lost, kept = bench.score([wild, fine])
    assert lost == (-1.0,)
    assert kept[0] > 0.1

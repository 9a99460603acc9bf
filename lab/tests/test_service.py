# SPDX-License-Identifier: Apache-2.0
"""Who is served, by budget: stamped, refused for private runs, and without code of others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training, load_dataset, make_plan
from dpcohort.errors import InputError
from dpcohort.runs import Run, train
from dpcohort_lab.service import SIMULATION_ONLY, section, simulated_service


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.fixture(scope="module")
def plan():
    clients = Population.from_arrays(sizes=[150] * 4, epsilon=[0.5, 1.0, 4.0, 8.0], delta=1e-5)
    training = Training(rounds=2, cohort_size=2, sampling_rate=0.2, dimension=650)
    return make_plan(clients, training, selection="unbiased", seed=3)


@pytest.fixture(scope="module")
def run(plan, digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("served") / "run"
    return train(plan, "logistic", digits, device="cpu", seed=0, out=out)


@pytest.mark.parametrize("by", ["budget", "similarity"])
def test_who_is_served_is_stamped_as_simulation(run, digits, by):
    groups = simulated_service(run, digits.train_labels, by=by, groups=2)
    assert all(g["stamp"] == SIMULATION_ONLY for g in groups)
    assert all(0 <= g["accuracy"] <= 1 for g in groups)
    whole = simulated_service(run, digits.train_labels, by="similarity", groups=1)[0]
    mix = np.bincount(digits.train_labels[run.partition.indices], minlength=10)
    expected = np.average(run.test.class_accuracy, weights=mix)
    assert whole["accuracy"] == pytest.approx(expected)


def test_who_is_served_is_refused_for_a_private_run(plan, digits):
    secret = replace(digits, public=False)
    run = train(plan, "logistic", secret, device="cpu")
    with pytest.raises(InputError, match="private"):
        simulated_service(run, digits.train_labels)


def test_what_is_asked_must_be_known(run, digits):
    with pytest.raises(InputError, match="similarity"):
        simulated_service(run, digits.train_labels, by="name")


def test_the_report_shows_it_and_runs_no_code_of_others(plan, run):
    shown = section(plan, run.path)
    assert len(shown.data) == 4
    assert SIMULATION_ONLY in shown.markup
    config = run.path / "config.toml"
    config.write_text('population.clients = "c.csv"\ndata.name = "mod:make"\n')
    hidden = section(plan, run.path)
    config.unlink()
    assert hidden.data == []
    assert "a report runs none" in hidden.markup
    assert len(Run.load(run.path).test.class_accuracy) == 10

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import Contract
from dpcohort.errors import InputError
from dpcohort.runs import (
    SIMULATION_ONLY,
    Comparison,
    mean_interval,
    summarise_seeds,
    train,
    who_was_heard,
)
from dpcohort.runs._evaluation import simulated_service

from .conftest import small_plan


@pytest.fixture(scope="module")
def two_seeds(plan, digits):
    return [train(plan, "logistic", digits, device="cpu", seed=seed) for seed in (0, 1)]


def test_means_and_intervals_over_seeds(two_seeds):
    found = summarise_seeds(two_seeds)
    accuracies = [run.test_accuracy for run in two_seeds]
    assert found.accuracy.mean == pytest.approx(np.mean(accuracies))
    assert found.accuracy.low < min(accuracies)
    assert found.seeds == (0, 1)
    assert len(found.class_accuracy) == 10
    classes = [c.mean for c in found.class_accuracy]
    assert classes[found.worst_class] == min(classes)
    assert found.loss.count == 2
    with pytest.raises(InputError):
        summarise_seeds([])


def test_who_was_heard_adds_up_and_is_ordered_by_budget(plan):
    groups = who_was_heard(plan, groups=3)
    assert [g.name for g in groups] == ["group 1", "group 2", "group 3", "public"]
    assert sum(g.clients for g in groups) == 8
    assert sum(g.draw_share for g in groups) == pytest.approx(1)
    assert sum(g.record_share for g in groups) == pytest.approx(1)
    assert groups[0].epsilon_high <= groups[1].epsilon_low
    assert groups[0].noise_std > groups[2].noise_std > groups[3].noise_std == 0
    assert groups[3].epsilon_low is None


def test_privacy_aware_hears_the_strict_less():
    aware = who_was_heard(small_plan(rounds=60, selection="privacy-aware"), groups=2)
    assert aware[0].heard < 0.8
    fair = who_was_heard(small_plan(rounds=60), groups=2)
    assert fair[0].heard == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("by", ["budget", "similarity"])
def test_who_is_served_is_stamped_as_simulation(two_seeds, digits, by):
    run = two_seeds[0]
    groups = simulated_service(run, digits.train_labels, by=by, groups=2)
    assert all(g["stamp"] == SIMULATION_ONLY for g in groups)
    assert all(0 <= g["accuracy"] <= 1 for g in groups)
    whole = simulated_service(run, digits.train_labels, by="similarity", groups=1)[0]
    mix = np.bincount(digits.train_labels[run.partition.indices], minlength=10)
    expected = np.average(run.test.class_accuracy, weights=mix)
    assert whole["accuracy"] == pytest.approx(expected)


def test_who_is_served_is_refused_for_a_private_run(plan, digits, secret):
    run = train(plan, "logistic", secret, device="cpu")
    with pytest.raises(InputError, match="private"):
        simulated_service(run, digits.train_labels)


def test_what_is_asked_must_be_known(two_seeds, digits):
    with pytest.raises(InputError, match="similarity"):
        simulated_service(two_seeds[0], digits.train_labels, by="name")


def test_where_noise_is_distributed_weights_say_who_was_heard():
    distributed = small_plan(accountant=Contract(trust="distributed"))
    groups = who_was_heard(distributed, groups=3)
    assert sum(group.draw_share for group in groups) == pytest.approx(1.0)
    loud = distributed.counts * distributed.noise.weights
    assert groups[-1].draw_share == pytest.approx(loud[-1] / loud.sum())  # the public client


def test_a_notebook_shows_how_sure_a_difference_is():
    several, one = (mean_interval(points) for points in ([1.0, 3.0], [2.0]))
    shown = [
        Comparison(name="a", baseline="b", seeds=(0,), difference=found)._repr_html_()
        for found in (several, one)
    ]
    assert f"{several.low:+.1f} to {several.high:+.1f}" in shown[0]
    assert "none with one seed" in shown[1]

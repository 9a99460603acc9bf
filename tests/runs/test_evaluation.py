# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import Contract
from dpcohort.errors import InputError
from dpcohort.runs import (
    Comparison,
    mean_interval,
    summarise_seeds,
    train,
    who_was_heard,
)

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

# SPDX-License-Identifier: Apache-2.0
"""Power-of-choice against a case worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.adaptive.rules import PowerOfChoice
from dpcohort.errors import InputError


def test_the_largest_reported_losses_are_drawn(view_of):
    rule = PowerOfChoice(d=4)
    answers = {0: 0.3, 2: 1.7, 3: 0.9, 5: 1.1}
    assert rule.choose(view_of([10] * 6), answers).tolist() == [2, 5]


def test_d_candidates_are_asked_in_proportion_to_their_sizes(view_of):
    rule, sizes = PowerOfChoice(d=2), [10, 20, 70]
    hits = np.zeros(3)
    for seed in range(3000):
        asked = rule.ask(view_of(sizes, seed=seed))
        assert asked.size == 2
        hits[asked] += 1
    # Drawn first with p, or second: p_j p_k / (1 - p_j), by hand for 0.1, 0.2, 0.7.
    p = np.array([0.1, 0.2, 0.7])
    second = np.array([sum(p[j] * p[k] / (1 - p[j]) for j in range(3) if j != k) for k in range(3)])
    expected = 3000 * (p + second)
    assert np.abs(hits - expected).max() < 5 * np.sqrt(3000 * 0.25)


def test_without_d_everybody_is_asked(view_of):
    view = view_of([10] * 4, reports_left=np.array([1, 0, 1, 1]))
    assert sorted(PowerOfChoice().ask(view).tolist()) == [0, 2, 3]


def test_the_automatic_cap_on_reports_is_twice_the_mean():
    assert PowerOfChoice(d=5).expected_reports(clients=50, rounds=30, draw_cap=2) == 6
    assert PowerOfChoice().expected_reports(clients=50, rounds=30, draw_cap=2) == 30


@pytest.mark.parametrize("d", [0, -3, 2.5, "six"])
def test_d_must_be_a_whole_number(d):
    with pytest.raises(InputError, match="d = "):
        PowerOfChoice(d=d)


def test_shrinking_does_not_follow_the_noise(view_of):
    stds = np.array([0.1, 0.1, 0.1, 8.0])
    view, answers = view_of([10] * 4, report_stds=stds), {0: 1.0, 1: 2.0, 2: 1.7, 3: 9.0}
    assert 3 in PowerOfChoice().choose(view, answers)
    assert set(PowerOfChoice(shrink=True).choose(view, answers).tolist()) == {1, 2}
    with pytest.raises(InputError, match="shrink"):
        PowerOfChoice(shrink=1)

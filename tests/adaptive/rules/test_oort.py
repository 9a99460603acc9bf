# SPDX-License-Identifier: Apache-2.0
"""The utility against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.adaptive import Report
from dpcohort.adaptive.rules import StatisticalUtility
from dpcohort.errors import InputError

REPORTS = (Report(0, 0, 4.0), Report(1, 1, 1.0), Report(2, 2, 9.0))


def test_the_score_by_hand(view_of):
    # Utilities 10 * 2, 20 * 1, 30 * 3 = 20, 20, 90; nothing cut at quantile 1; range 70.
    view = view_of([10, 20, 30, 5], round=3, reports=REPORTS)
    scores = StatisticalUtility(clip_quantile=1.0).scores(view)
    stale = [math.sqrt(0.1 * math.log(4) / t) for t in (1, 2, 3)]
    assert scores[:3] == pytest.approx([stale[0], stale[1], 1 + stale[2]])
    assert math.isnan(scores[3])


def test_the_largest_utilities_are_cut(view_of):
    # Sorted 20, 20, 90: the 0.5 quantile, taken from below, is 20, so all are equal.
    view = view_of([10, 20, 30], round=3, reports=REPORTS)
    scores = StatisticalUtility(clip_quantile=0.5).scores(view)
    assert scores == pytest.approx([math.sqrt(0.1 * math.log(4) / t) for t in (1, 2, 3)])


def test_a_noisy_report_below_zero_counts_as_zero(view_of):
    view = view_of([10, 10], round=1, reports=(Report(0, 0, -3.0), Report(0, 1, 1.0)))
    assert np.isfinite(StatisticalUtility().scores(view)).all()


def test_exploration_falls_to_its_floor():
    rule = StatisticalUtility()
    assert rule.exploration_share(0) == 0.9
    assert rule.exploration_share(10) == pytest.approx(0.9 * 0.95**10)
    assert rule.exploration_share(100) == 0.2


def test_the_unheard_get_the_exploration_share(view_of):
    reports = tuple(Report(0, k, 1.0 + k) for k in range(6))
    view = view_of([10] * 12, round=1, cohort_size=4, reports=reports)
    asked = StatisticalUtility(exploration=0.5, decay=1.0).ask(view)
    assert (asked >= 6).sum() == 2
    assert asked.size == 4


def test_at_first_everybody_is_unheard(view_of):
    assert StatisticalUtility().ask(view_of([10] * 5)).size == 2


def test_far_below_the_best_is_not_drawn(view_of):
    reports = tuple(Report(0, k, v) for k, v in enumerate([25.0, 24.0, 0.1, 0.1, 0.1]))
    rule = StatisticalUtility(exploration=0.0, least_exploration=0.0, cut_off=0.9)
    for seed in range(20):
        view = view_of([10] * 5, round=1, reports=reports, seed=seed)
        assert set(rule.ask(view).tolist()) == {0, 1}


@pytest.mark.parametrize("name", ["exploration", "decay", "clip_quantile", "cut_off"])
def test_settings_are_shares(name):
    with pytest.raises(InputError, match=name):
        StatisticalUtility(**{name: 1.5})

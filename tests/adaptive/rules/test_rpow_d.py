# SPDX-License-Identifier: Apache-2.0
"""The recent-loss variant against a case worked out by hand."""

from __future__ import annotations

import numpy as np

from dpcohort.adaptive import Report
from dpcohort.adaptive.rules import RecentPowerOfChoice

REPORTS = (Report(0, 0, 3.0), Report(0, 1, 0.5), Report(1, 2, 1.0), Report(1, 0, 0.2))


def test_unheard_clients_come_first_then_the_last_loss(view_of):
    rule = RecentPowerOfChoice()
    view = view_of([10] * 4, round=2, reports=REPORTS)
    # Last losses: 0 -> 0.2 (the 3.0 is old), 1 -> 0.5, 2 -> 1.0, 3 never.
    assert rule.ask(view).tolist() == [3, 2]
    view = view_of([10] * 3, round=2, reports=REPORTS)
    assert rule.ask(view).tolist() == [2, 1]


def test_those_asked_are_those_drawn(view_of):
    rule = RecentPowerOfChoice(d=3)
    view = view_of([10] * 6, round=2, reports=REPORTS)
    asked = rule.ask(view)
    assert asked.size == 2
    answers = {int(k): 9.0 for k in asked}
    assert sorted(rule.choose(view, answers).tolist()) == sorted(asked.tolist())
    assert np.isin(asked, view.can_report).all()


def test_shrinking_weighs_the_last_losses_by_their_noise(view_of):
    reports = (Report(0, 0, 1.0), Report(0, 1, 2.0), Report(0, 2, 9.0))
    view = view_of(
        [10] * 3, round=1, cohort_size=1, reports=reports, report_stds=np.array([0.1, 0.1, 8.0])
    )
    assert RecentPowerOfChoice().ask(view).tolist() == [2]
    assert RecentPowerOfChoice(shrink=True).ask(view).tolist() == [1]

# SPDX-License-Identifier: Apache-2.0
"""UCB-CS against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.adaptive import Report
from dpcohort.adaptive.rules import BanditLoss
from dpcohort.errors import InputError


def test_the_index_by_hand(view_of):
    # gamma 1/2, round 2: client 0 reported 2.0 at 0 (weight 1/4) and 1.0 at 1 (weight 1/2).
    reports = (Report(0, 0, 2.0), Report(1, 0, 1.0), Report(1, 1, 3.0))
    view = view_of([30, 10, 60], round=2, reports=reports)
    index = BanditLoss(gamma=0.5, exploration=2.0).indices(view)
    horizon = 1 + 0.5 + 0.25
    bonus = lambda count: math.sqrt(2 * 4 * math.log(horizon) / count)  # noqa: E731
    assert index[0] == pytest.approx(0.3 * ((0.5 + 0.5) / 0.75 + bonus(0.75)))
    assert index[1] == pytest.approx(0.1 * (3.0 + bonus(0.5)))
    assert index[2] == np.inf


def test_unheard_clients_come_first_then_the_largest_index(view_of):
    reports = (Report(0, 0, 2.0), Report(0, 1, 1.0), Report(0, 2, 4.0))
    view = view_of([10, 10, 10, 10], round=1, reports=reports)
    assert BanditLoss(exploration=0.0).ask(view).tolist() == [3, 2]


def test_an_old_report_leaves_room_to_explore(view_of):
    reports = (Report(0, 0, 1.0), Report(9, 1, 1.0), Report(9, 2, 1.0))
    view = view_of([10, 10, 10], round=10, cohort_size=1, reports=reports)
    assert BanditLoss(gamma=0.7).ask(view).tolist() == [0]


@pytest.mark.parametrize("gamma", [0.0, 1.1, -0.5])
def test_gamma_is_a_discount(gamma):
    with pytest.raises(InputError, match="gamma"):
        BanditLoss(gamma=gamma)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.errors import InputError
from dpcohort.selection.rules import Threshold


def test_only_large_enough_budgets_and_public_clients_take_part(problem):
    chosen = Threshold(threshold=1.0).select(problem)
    assert chosen.probabilities == pytest.approx([0, 2 / 9, 3 / 9, 4 / 9])
    assert Threshold(threshold=100.0).select(problem).probabilities.tolist() == [0, 0, 0, 1]
    assert chosen.settings == {"threshold": 1.0}


def test_nobody_left_names_the_largest_epsilon(private_problem):
    with pytest.raises(InputError, match=r"threshold = 5.0 .*largest epsilon .* is 4\."):
        Threshold(threshold=5.0).select(private_problem)

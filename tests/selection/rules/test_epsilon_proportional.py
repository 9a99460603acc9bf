# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.selection.rules import EpsilonProportional


def test_public_clients_count_as_the_largest_epsilon_unless_told(problem):
    assert EpsilonProportional().select(problem).probabilities == pytest.approx(
        np.array([0.5, 1, 4, 4]) / 9.5
    )
    told = EpsilonProportional(public_epsilon=10.0).select(problem)
    assert told.probabilities == pytest.approx(np.array([0.5, 1, 4, 10]) / 15.5)
    assert told.settings == {"public_epsilon": 10.0}


def test_everybody_public_is_everybody_equal(make_problem):
    problem = make_problem(
        epsilon=np.full(4, np.nan), public=np.ones(4, dtype=bool), noise_costs=np.zeros(4)
    )
    assert EpsilonProportional().select(problem).probabilities == pytest.approx([0.25] * 4)


def test_enormous_epsilons_do_not_overflow(make_problem):
    problem = make_problem(
        epsilon=np.array([1e308, 1e308, 5e307, 1e308]), public=np.zeros(4, dtype=bool)
    )
    p = EpsilonProportional().select(problem).probabilities
    assert p == pytest.approx(np.array([2, 2, 1, 2]) / 7)

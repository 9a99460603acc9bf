# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.selection.rules import InverseNoise, PrivacyAware


def test_probabilities_are_inverse_to_the_noise(private_problem):
    chosen = InverseNoise().select(private_problem)
    inverse = 1 / private_problem.noise_costs
    assert chosen.probabilities == pytest.approx(inverse / inverse.sum())
    limit = PrivacyAware(eta=1e12).select(private_problem).probabilities
    assert chosen.probabilities == pytest.approx(limit, rel=1e-5)


def test_public_clients_take_everything_by_size(make_problem):
    problem = make_problem(
        epsilon=np.array([0.5, 1.0, np.nan, np.nan]),
        public=np.array([False, False, True, True]),
        noise_costs=np.array([40.0, 10.0, 0.0, 0.0]),
    )
    assert InverseNoise().select(problem).probabilities == pytest.approx([0, 0, 3 / 7, 4 / 7])


def test_linear_costs_can_exclude(make_problem):
    problem = make_problem(
        epsilon=np.ones(4),
        public=np.zeros(4, dtype=bool),
        noise_costs=np.ones(4),
        linear_costs=np.array([0.0, 0.0, 0.0, 100.0]),
    )
    assert InverseNoise().select(problem).probabilities == pytest.approx([1 / 3] * 3 + [0])

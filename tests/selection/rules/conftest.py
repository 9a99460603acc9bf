# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.selection import SelectionProblem


@pytest.fixture
def make_problem():
    """A problem of four clients, the last one public, with any field replaced."""

    def make(**changes):
        given = {
            "unbiased": np.array([0.1, 0.2, 0.3, 0.4]),
            "epsilon": np.array([0.5, 1.0, 4.0, np.nan]),
            "public": np.array([False, False, False, True]),
            "noise_costs": np.array([40.0, 10.0, 1.0, 0.0]),
            "linear_costs": np.zeros(4),
            "total_steps": 100,
            "smoothness": 1.0,
        }
        return SelectionProblem(**{**given, **changes})

    return make


@pytest.fixture
def problem(make_problem):
    """Three private clients and a public one."""
    return make_problem()


@pytest.fixture
def private_problem(make_problem):
    """Four private clients."""
    return make_problem(
        epsilon=np.array([0.5, 1.0, 4.0, 2.0]),
        public=np.zeros(4, dtype=bool),
        noise_costs=np.array([40.0, 10.0, 1.0, 4.0]),
    )

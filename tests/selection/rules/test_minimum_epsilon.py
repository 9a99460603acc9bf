# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from dpcohort.selection.rules import MinimumEpsilon


def test_everybody_is_noised_like_the_strictest(problem, private_problem):
    rule = MinimumEpsilon()
    assert np.array_equal(rule.select(problem).probabilities, problem.unbiased)
    assert np.array_equal(rule.effective_epsilon(problem), [0.5, 0.5, 0.5, np.nan], equal_nan=True)
    assert rule.effective_epsilon(private_problem).tolist() == [0.5] * 4


def test_public_clients_stay_public(make_problem):
    problem = make_problem(
        epsilon=np.full(4, np.nan), public=np.ones(4, dtype=bool), noise_costs=np.zeros(4)
    )
    assert np.isnan(MinimumEpsilon().effective_epsilon(problem)).all()

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from dpcohort.selection.rules import Unbiased


def test_probabilities_are_the_sizes_whatever_the_budgets(problem, private_problem):
    for one in (problem, private_problem):
        chosen = Unbiased().select(one)
        assert np.array_equal(chosen.probabilities, one.unbiased)
        assert chosen.bias == 0.0
        assert chosen.gap > 0.5

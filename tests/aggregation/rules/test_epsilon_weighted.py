# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.aggregation import EpsilonWeighted
from dpcohort.errors import InputError


def weights_of(rule, cohort):
    return rule.combine(torch.eye(len(cohort), dtype=torch.float64), cohort).tolist()


def test_a_hand_computed_case(make_cohort):
    cohort = make_cohort(np.ones(3), clients=[1, 0, 1])
    assert weights_of(EpsilonWeighted(epsilon=[2.0, 1.0]), cohort) == pytest.approx(
        [0.25, 0.5, 0.25]
    )


def test_public_clients_count_as_the_largest_epsilon_of_the_population(make_cohort):
    epsilon = [1.0, np.nan, 3.0]
    pair = make_cohort([1.0, 0.0])  # the client of epsilon 3 is not in this cohort
    assert weights_of(EpsilonWeighted(epsilon=epsilon), pair) == pytest.approx([1 / 4, 3 / 4])
    named = EpsilonWeighted(epsilon=epsilon, public_epsilon=9.0)
    assert weights_of(named, pair) == pytest.approx([0.1, 0.9])


def test_huge_epsilons_do_not_overflow(make_cohort):
    rule = EpsilonWeighted(epsilon=[1.5e308, 1.5e308, 1.0])
    assert weights_of(rule, make_cohort(np.ones(3))) == pytest.approx([0.5, 0.5, 0.0])


@pytest.mark.parametrize("epsilon", [[0.0], [1.0, -1.0], [np.inf], [], 1.0, ["a lot"]])
def test_bad_epsilons_are_refused(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        EpsilonWeighted(epsilon=epsilon)


def test_a_public_epsilon_of_zero_is_refused():
    with pytest.raises(InputError, match="public_epsilon = 0"):
        EpsilonWeighted(epsilon=[1.0], public_epsilon=0)

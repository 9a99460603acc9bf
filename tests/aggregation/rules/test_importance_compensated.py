# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dpcohort.aggregation import ImportanceCompensated, Mean
from dpcohort.errors import InputError

UNBIASED = np.array([0.5, 0.3, 0.2])
CHOSEN = np.array([0.1, 0.15, 0.75])


@pytest.fixture
def expectation(make_cohort):
    """The expectation of a rule over all cohorts of K independent draws, by enumeration."""

    def expect(rule, updates, draws):
        total = torch.zeros(updates.shape[1], dtype=updates.dtype)
        for who in itertools.product(range(3), repeat=draws):
            clients = np.array(who)
            combined = rule.combine(updates[clients], make_cohort(np.ones(draws), clients))
            total += float(np.prod(CHOSEN[clients])) * combined
        return total

    return expect


@pytest.mark.parametrize("draws", [1, 2, 4])
def test_it_is_unbiased_over_all_possible_cohorts(expectation, draws):
    updates = torch.tensor([[1.0, -4.0], [10.0, 3.0], [-7.0, 0.5]], dtype=torch.float64)
    wanted = torch.as_tensor(UNBIASED) @ updates
    rule = ImportanceCompensated(probabilities=CHOSEN, unbiased=UNBIASED)
    torch.testing.assert_close(expectation(rule, updates, draws), wanted, rtol=1e-13, atol=1e-13)
    # The plain mean is not: it stands for p^s.
    assert (expectation(Mean(), updates, draws) - wanted).norm() > 1.0


def test_it_is_the_mean_where_the_selection_is_unbiased(make_cohort):
    updates = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    cohort = make_cohort(np.ones(4), clients=[0, 2, 2, 1])
    rule = ImportanceCompensated(probabilities=UNBIASED, unbiased=UNBIASED)
    torch.testing.assert_close(rule.combine(updates, cohort), updates.mean(0))


def test_a_client_that_is_never_drawn_cannot_be_made_up_for():
    with pytest.raises(InputError, match=r"client 1 \(2 in all\) is never drawn"):
        ImportanceCompensated(probabilities=[1.0, 0.0, 0.0], unbiased=UNBIASED)


def test_a_client_nobody_counts_may_be_left_out_but_not_drawn(make_cohort):
    rule = ImportanceCompensated(probabilities=[0.5, 0.5, 0.0], unbiased=[0.5, 0.5, 0.0])
    assert rule.combine(torch.eye(2), make_cohort([1.0, 1.0])).tolist() == [0.5, 0.5]
    with pytest.raises(InputError, match="client 2 is drawn in round 3 but has probability 0"):
        rule.combine(torch.eye(1), make_cohort([1.0], clients=[2]))


@pytest.mark.parametrize(
    ("chosen", "unbiased", "message"),
    [
        ([0.5, 0.6], [0.5, 0.5], "sum of probabilities"),
        ([0.5, 0.5], [0.5, 0.4], "sum of unbiased"),
        ([0.5, 0.5], [1.0], "length of unbiased"),
        ([1.5, -0.5], [0.5, 0.5], r"probabilities\[1\]"),
    ],
)
def test_bad_probabilities_are_explained(chosen, unbiased, message):
    with pytest.raises(InputError, match=message):
        ImportanceCompensated(probabilities=chosen, unbiased=unbiased)

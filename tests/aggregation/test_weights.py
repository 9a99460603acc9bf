# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.aggregation.weights import checked_updates, client_column, of_cohort, weighted_sum
from dpcohort.errors import InputError


def test_an_update_that_is_not_finite_names_its_sender(make_cohort):
    cohort = make_cohort([1.0, 1.0, 1.0], clients=[5, 9, 9])
    updates = torch.zeros(3, 2)
    assert checked_updates(updates, cohort) is updates
    updates[2, 1] = -torch.inf
    with pytest.raises(InputError, match=r"client 9 \(draw 1\) in round 3 is not finite"):
        checked_updates(updates, cohort)


@pytest.mark.parametrize("shape", [(2, 4), (3,), (0, 4)])
def test_there_is_a_row_for_each_draw(make_cohort, shape):
    with pytest.raises(InputError, match="shape of updates"):
        checked_updates(torch.zeros(shape), make_cohort([1.0, 1.0, 1.0]))


def test_an_empty_cohort_is_refused(make_cohort):
    with pytest.raises(InputError, match="that has any"):
        checked_updates(torch.zeros(0, 4), make_cohort([]))


def test_a_column_is_a_copy_closed_to_writing():
    mine = np.array([1.0, 2.0])
    column = client_column("sizes", mine, above=0)
    mine[0] = 7.0
    assert column.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 3.0


@pytest.mark.parametrize("bad", [[], 3.0, [[1.0]], [1.0, -1.0], [np.nan], ["many"]])
def test_bad_columns_are_refused(bad):
    with pytest.raises(InputError, match="sizes"):
        client_column("sizes", bad, at_least=0)


def test_entries_follow_the_draws(make_cohort):
    cohort = make_cohort([1.0, 1.0, 1.0], clients=[2, 0, 2])
    assert of_cohort("x", np.array([10.0, 20.0, 30.0]), cohort).tolist() == [30.0, 10.0, 30.0]
    with pytest.raises(InputError, match="client 2 is drawn"):
        of_cohort("x", np.array([10.0, 20.0]), cohort)


def test_the_sum_keeps_the_precision_of_the_updates():
    for dtype in (torch.float32, torch.float64):
        combined = weighted_sum(torch.eye(2, dtype=dtype), np.array([0.25, 2.0]))
        assert combined.dtype == dtype
        assert combined.tolist() == [0.25, 2.0]

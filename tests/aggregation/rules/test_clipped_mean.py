# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.aggregation import ClippedMean
from dpcohort.errors import InputError


def test_long_updates_are_shortened_and_short_ones_left(make_cohort):
    updates = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    combined = ClippedMean(bound=1.0).combine(updates, make_cohort([1.0] * 3))
    assert combined.tolist() == pytest.approx([0.9 / 3, 1.2 / 3])


@pytest.mark.parametrize("lie", [1e6, 3e38, -3e38])
def test_one_liar_moves_the_result_by_no_more_than_its_share(make_cohort, lie):
    updates = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    rule, cohort = ClippedMean(bound=4.0), make_cohort([1.0] * 5)
    honest = rule.combine(updates, cohort)
    updates[2] = lie
    moved = float((rule.combine(updates, cohort) - honest).norm())
    assert 0.1 < moved <= 2 * 4.0 / 5 * (1 + 1e-5)


def test_a_wide_bound_is_the_mean(make_cohort):
    updates = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    combined = ClippedMean(bound=1e6).combine(updates, make_cohort([1.0] * 5))
    assert torch.equal(combined, updates.mean(0))


def test_the_tiniest_updates_are_left(make_cohort):
    updates = torch.full((2, 3), 1e-44)
    combined = ClippedMean(bound=1.0).combine(updates, make_cohort([1.0] * 2))
    assert torch.equal(combined, updates.mean(0))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), "wide"])
def test_a_bound_that_is_none_is_refused(bound):
    with pytest.raises(InputError, match="bound"):
        ClippedMean(bound=bound)

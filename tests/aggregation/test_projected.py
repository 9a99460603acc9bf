# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
import torch

from dpcohort.aggregation import Projected, ProjectedPlus
from dpcohort.errors import InputError


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_against_the_projection_written_out(make_cohort):
    updates = randn(8, 12)
    cohort = make_cohort([1.0, 5.0, 1.0, 6.0, 1.0, 7.0, 1.0, 8.0])
    leaders, others = updates[::2], updates[1::2]
    centre = leaders.mean(0)
    # Principal directions from the covariance, a second way.
    _, vectors = torch.linalg.eigh((leaders - centre).T @ (leaders - centre))
    basis = vectors[:, -2:]
    projected = centre + (others - centre) @ basis @ basis.T
    expected = torch.cat([leaders, projected]).mean(0)
    combined = Projected(share=0.5, components=2).combine(updates, cohort)
    torch.testing.assert_close(combined, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("settings", "stds", "leading"),
    [
        ({}, [3.0, 1.0, 2.0], [False, True, True]),  # at least components + 1
        ({"share": 0.25, "components": 1}, [1.0, 2.0, 3.0, 4.0], [True, True, False, False]),
        ({"share": 0.7}, [1.0, 2.0, 3.0, 4.0], [True, True, True, False]),
        ({}, [1.0, 2.0, 2.0, 2.0], [True, True, True, True]),  # equal noise, same side
        ({"components": 5}, [1.0, 2.0, 3.0], [True, True, True]),
        ({}, [1.0], [True]),
        ({}, [0.0, 0.0, 1.0], [True, True, False]),
    ],
)
def test_the_leading_group(make_cohort, settings, stds, leading):
    assert Projected(**settings).leading(make_cohort(stds)).tolist() == leading


@pytest.mark.parametrize("bad", [{"share": 0.0}, {"share": 1.5}, {"components": 0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Projected(**bad)


def test_a_hand_computed_case(make_cohort):
    # Leaders (1, 0) and (3, 0) have the centre (2, 0); the other, (5, 60), is seen along (0, 1) of
    # the last round only: (2, 60). The mean of (2, 0), (2, 0) and (2, 60) is (2, 20).
    updates = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 60.0]])
    last = torch.tensor([[0.0, 1.0]])
    rule = ProjectedPlus()
    combined, memory = rule.combine_remembering(updates, make_cohort([1.0, 1.0, 9.0]), last)
    assert combined.tolist() == [2.0, 20.0]
    assert memory.abs().tolist() == [[1.0, 0.0]]  # the leaders' own direction, for the next round


def test_a_noisy_client_enters_by_a_few_numbers(make_cohort):
    cohort = make_cohort([1.0, 1.0, 1.0, 5.0, 5.0])
    updates, basis = randn(5, 30), torch.linalg.qr(randn(30, 2, seed=1)).Q.T
    rule = ProjectedPlus(share=0.6, components=2)
    combined, _ = rule.combine_remembering(updates, cohort, basis)
    changed = updates.clone()
    outside = randn(2, 30, seed=2)
    changed[3:] += outside - outside @ basis.T @ basis  # V^T x stays the same
    torch.testing.assert_close(rule.combine_remembering(changed, cohort, basis)[0], combined)


def test_the_first_round_is_the_plain_projection(make_cohort):
    cohort, updates = make_cohort([1.0, 1.0, 2.0, 5.0]), randn(4, 9)
    first, memory = ProjectedPlus().combine_remembering(updates, cohort, None)
    assert torch.equal(first, Projected().combine(updates, cohort))
    assert torch.equal(ProjectedPlus().combine(updates, cohort), first)
    # With its own subspace handed back, a round is the plain projection again.
    again, _ = ProjectedPlus().combine_remembering(updates, cohort, memory)
    torch.testing.assert_close(again, first)

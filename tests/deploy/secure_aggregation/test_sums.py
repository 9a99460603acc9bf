# SPDX-License-Identifier: Apache-2.0
"""The sum is that of the integers in the clear, whoever vanishes; a masked vector says nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpcohort.deploy.secure_aggregation import MaskedSum
from dpcohort.errors import InputError

#: How many vanish before they mask, before they agree, before they reveal: up to 3 in all.
DROPOUTS = [
    (0, 0, 0),
    (1, 0, 0),
    (3, 0, 0),
    (1, 1, 0),
    (2, 1, 0),
    (1, 2, 0),
    (1, 0, 1),
    (1, 0, 2),
    (0, 0, 1),
    (0, 0, 3),
    (1, 1, 1),
]


@pytest.mark.parametrize("gone", DROPOUTS)
def test_the_sum_is_that_in_the_clear(make_cohort, gone):
    cohort = make_cohort(10, colluding=2, dropouts=3)
    values = cohort.values(seed=sum(gone))
    order = list(np.random.default_rng(1).permutation(cohort.names))
    absent, order = order[: gone[0]], order[gone[0] :]
    then, last = order[: gone[1]], order[gone[1] : gone[1] + gone[2]]
    server = cohort.collected(values, absent=absent)
    found = cohort.unmask(server, silent_then=then, silent_last=last)
    clear = sum(values[name] for name in cohort.names if name not in absent)
    np.testing.assert_array_equal(found, clear)
    assert found.dtype == np.int64


@pytest.mark.parametrize("size", [2, 3, 33])
def test_cohorts_of_other_sizes(make_cohort, size):
    cohort = make_cohort(size, coordinates=9000, bits=62)
    values = cohort.values()
    found = cohort.unmask(cohort.collected(values))
    np.testing.assert_array_equal(found, sum(values.values()))


def test_largest_and_smallest_sums_do_not_wrap(make_cohort):
    cohort = make_cohort(4, bits=8, coordinates=2)
    values = {name: np.array([-32, 31]) for name in cohort.names}
    np.testing.assert_array_equal(cohort.unmask(cohort.collected(values)), [-128, 124])


def test_a_member_that_restarts_in_between(make_cohort):
    """It keeps nothing but its secret: shares sealed for it before can be opened after."""
    cohort = make_cohort(4, dropouts=1)
    values = cohort.values()
    server = cohort.collected(values, absent=["ward-3"])
    cohort.members = {name: cohort.member(name) for name in cohort.names}
    found = cohort.unmask(server)
    np.testing.assert_array_equal(found, sum(values[name] for name in cohort.names[:3]))


def test_one_more_than_allowed_vanishes(make_cohort):
    cohort = make_cohort(10, colluding=2, dropouts=3)
    values = cohort.values()
    with pytest.raises(InputError, match="members left = 6 is not allowed: it must be at least 7"):
        cohort.collected(values, absent=cohort.names[:4])
    server = cohort.collected(values, absent=cohort.names[:3])
    with pytest.raises(InputError, match="at least 7 members"):
        cohort.unmask(server, silent_last=cohort.names[-1:])
    assert not server.is_open


def test_what_is_left_under_masks_is_uniform(make_cohort):
    """One vector alone: each of the b bits, and the leading bits together, as coins."""
    cohort = make_cohort(3, coordinates=200_000, bits=37)
    asked = cohort.ask()
    zeros = np.zeros(cohort.coordinates, np.int64)
    masked = cohort.members["ward-1"].mask(asked, zeros).vector
    assert int(masked.max()) < 2**37
    for shift in (0, 13, 29):
        counts = np.bincount(((masked >> np.uint64(shift)) & np.uint64(255)).astype(int))
        assert stats.chisquare(counts).pvalue > 1e-6
    # And of a sum of all but one: its pairwise masks are left in it.
    others = [one for name, one in cohort.members.items() if name != "ward-1"]
    part = sum(one.mask(asked, zeros).vector for one in others) % np.uint64(2**37)
    assert stats.chisquare(np.bincount((part >> np.uint64(29)).astype(int))).pvalue > 1e-6


def test_pairwise_masks_alone_differ_between_rounds(make_cohort):
    """Own masks taken off (two exchanges done), what is left of a vector is uniform still, and
    another in every round: revealed seeds of one round say nothing of the next."""
    cohort = make_cohort(4, coordinates=100_000, dropouts=0, bits=40)
    zeros = {name: np.zeros(cohort.coordinates, np.int64) for name in cohort.names}
    left = []
    for round in (0, 1):
        asked = cohort.ask(round)
        masked = cohort.members["ward-0"].mask(asked, zeros["ward-0"])
        server = MaskedSum(asked)
        server.take(masked)
        for name in cohort.names[1:]:
            server.take(cohort.members[name].mask(asked, zeros[name]))
        server.close()
        assert not cohort.unmask(server).any()
        own = _own_mask(cohort, server)
        left.append((masked.vector - own) % np.uint64(2**40))
    for one in (*left, (left[0] - left[1]) % np.uint64(2**40)):
        counts = np.bincount((one >> np.uint64(32)).astype(int))
        assert stats.chisquare(counts).pvalue > 1e-6


def _own_mask(cohort, server):
    """The mask of ward-0 alone, as the server knows it after the second exchange."""
    from dpcohort.deploy.secure_aggregation._masks import SHARE_BYTES, add_masks_, join_all

    row = [int.from_bytes(server._shares[name][:SHARE_BYTES], "big") for name in cohort.names]
    (own,) = join_all(range(1, len(row) + 1), [row])
    return add_masks_(np.zeros(cohort.coordinates, np.uint64), [own])


def test_the_own_mask_is_new_every_time(make_cohort):
    """It hides a vector even if all seeds that the member has in common with others are known."""
    cohort = make_cohort(3, coordinates=1000)
    zeros = np.zeros(cohort.coordinates, np.int64)
    first, second = (cohort.members["ward-0"].mask(cohort.ask(), zeros).vector for _ in range(2))
    assert (first != second).mean() > 0.99

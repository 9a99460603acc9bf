# SPDX-License-Identifier: Apache-2.0
"""Streams that cancel, and secrets in shares."""

from __future__ import annotations

import os

import numpy as np
import pytest

from dpcohort.deploy.secure_aggregation._masks import PRIME, add_masks_, join_all, split


def test_masks_cancel_at_any_length():
    for size in (1, 7, 8192, 8193, 30_001):
        vector = np.arange(size, dtype=np.uint64)
        seeds = [os.urandom(32) for _ in range(3)]
        masked = add_masks_(vector.copy(), seeds[:2], seeds[2:])
        assert (masked != vector).mean() > 0.99 or size == 1
        np.testing.assert_array_equal(add_masks_(masked, seeds[2:], seeds[:2]), vector)


def test_the_modulus_is_prime():
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 40):  # Miller and Rabin
        powers = [pow(base, odd * 2**i, PRIME) for i in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers
    assert PRIME > 2**256


def join(shares):
    """The secret of which these are shares, by place."""
    return join_all(list(shares), [list(shares.values())])[0]


@pytest.mark.parametrize(("threshold", "members"), [(1, 1), (2, 3), (5, 7), (67, 100)])
def test_any_threshold_of_shares_gives_the_secret(threshold, members):
    secret, dice = os.urandom(32), np.random.default_rng(0)
    shares = split(secret, threshold=threshold, members=members)
    for _ in range(5):
        places = dice.permutation(members)[:threshold]
        assert join({int(i) + 1: shares[i] for i in places}) == secret


def test_fewer_shares_fit_every_secret():
    """One share short, there is a last share for every secret: nothing is known of it."""
    shares = split(b"a" * 32, threshold=3, members=5)
    known = {1: shares[0], 4: shares[3]}
    weights = [int.from_bytes(join({1: a, 4: b, 5: c}), "big")
               for a, b, c in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]  # fmt: skip
    for secret in (b"a" * 32, b"b" * 32, bytes(32)):
        rest = int.from_bytes(secret, "big") - weights[0] * known[1] - weights[1] * known[4]
        last = rest * pow(weights[2], -1, PRIME) % PRIME
        assert join({**known, 5: last}) == secret
    assert join(known) != b"a" * 32


def test_two_shares_at_one_place_are_refused():
    with pytest.raises(ValueError, match="one share"):
        join_all([1, 1], [[2, 3]])
    with pytest.raises(ValueError, match="threshold"):
        split(bytes(32), threshold=4, members=3)
    with pytest.raises(ValueError, match="32 bytes"):
        split(bytes(31), threshold=1, members=3)

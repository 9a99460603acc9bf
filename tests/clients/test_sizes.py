# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.clients.sizes import PAPER_SIZE_WEIGHTS, share_out
from dpcohort.errors import InputError


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=50),
    total=st.integers(1_000, 10**15),
)
def test_sizes_sum_exactly_and_stay_within_one_of_their_share(weights: list[float], total: int):
    sizes = share_out(total, weights)
    assert int(sizes.sum()) == total
    shares = total * np.array(weights) / np.sum(weights)
    assert (np.abs(sizes - shares) <= 1 + 1e-9 * shares).all()


def test_the_largest_remainders_get_what_is_left():
    # shares 1.2, 3.3, 5.5: one record is left over, and 5.5 has the largest remainder
    assert share_out(10, [1.2, 3.3, 5.5]).tolist() == [1, 3, 6]


def test_equal_remainders_go_to_the_first():
    assert share_out(8, [1, 1, 1]).tolist() == [3, 3, 2]


def test_a_million_shares_sum_exactly():
    weights = PAPER_SIZE_WEIGHTS.draw(1_000_000, np.random.default_rng(0))
    assert int(share_out(10**15, weights).sum()) == 10**15


def test_a_client_without_a_record_is_refused():
    with pytest.raises(InputError, match=r"total_size = 3 .*all 5 clients; 2 would get no record"):
        share_out(3, [1, 1, 1, 1, 1])


@pytest.mark.parametrize("weights", [[1, 0], [1, -1], [1, np.nan], [1, np.inf]])
def test_weights_are_positive(weights: list[float]):
    with pytest.raises(InputError, match=r"weights\[1\]"):
        share_out(10, weights)

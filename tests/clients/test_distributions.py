# SPDX-License-Identifier: Apache-2.0
"""Budget itself is tested with the clients that hold it; here, the budgets of the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.clients._distributions import (
    PAPER_BUDGETS,
    Distribution,
    choices,
    fixed,
    gaussian_mixture,
    share_out,
    uniform,
)
from dpcohort.errors import InputError

ALL = [
    fixed(2),
    uniform(0, 1),
    uniform(0.5, 1.5, minimum=0.75),
    gaussian_mixture([(0.3, 0.5, 0.2), (0.7, 10, 1)]),
    gaussian_mixture([(1, 0, 1)], minimum=0.5),
    choices([0.5, 2, 8], [1, 0, 3]),
]


@pytest.mark.parametrize("distribution", ALL)
def test_draws_are_positive_floats_and_the_seed_decides(distribution: Distribution):
    draws = distribution(5_000, np.random.default_rng(7))
    assert draws.dtype == np.float64
    assert draws.shape == (5_000,)
    assert (draws > 0).all()
    np.testing.assert_array_equal(draws, distribution(5_000, np.random.default_rng(7)))
    assert distribution(0, np.random.default_rng(7)).shape == (0,)


def test_below_the_minimum_is_drawn_again_not_clipped():
    draws = uniform(0, 1, minimum=0.4)(20_000, np.random.default_rng(0))
    assert draws.min() > 0.4  # clipping would leave 8,000 draws at exactly 0.4
    assert abs(draws.mean() - 0.7) < 0.01
    np.testing.assert_allclose(np.quantile(draws, [0.25, 0.75]), [0.55, 0.85], atol=0.01)


def test_discarded_draws_come_from_the_whole_mixture_again():
    # Half of the first component is negative, so it must end up with 1/3 of the kept draws.
    draws = gaussian_mixture([(1, 0, 0.1), (1, 10, 0.1)])(50_000, np.random.default_rng(0))
    assert abs(np.mean(draws < 5) - 1 / 3) < 0.01
    folded = draws[draws < 5]
    assert abs(folded.mean() - 0.1 * math.sqrt(2 / math.pi)) < 0.003


def test_choices_follow_their_weights():
    draws = choices([1, 2], [1, 3])(20_000, np.random.default_rng(0))
    assert abs(np.mean(draws == 2) - 0.75) < 0.02
    equal = choices([1, 2])(20_000, np.random.default_rng(0))
    assert abs(np.mean(equal == 2) - 0.5) < 0.02


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fixed(0), "value = 0 .* above 0"),
        (lambda: fixed(math.inf), "value = inf"),
        (lambda: uniform(-1, 1), "low = -1 .* at least 0"),
        (lambda: uniform(2, 2), "high = 2 .* above 2"),
        (lambda: uniform(0, math.inf), "high = inf"),
        (lambda: uniform(0, 1, minimum=1), "minimum = 1 .* below 1"),
        (lambda: uniform(0, 1, minimum=0.999), "of the draws of this distribution"),
        (lambda: gaussian_mixture([]), r"components = \[\] .* at least one entry"),
        (lambda: gaussian_mixture("abc"), "components = 'abc'"),
        (lambda: gaussian_mixture([(1, 2)]), r"components = \(1, 2\) .* \(weight, mean, std\)"),
        (lambda: gaussian_mixture([{"weight": 1}]), "components = .* \\(weight, mean, std\\)"),
        (lambda: gaussian_mixture([(0, 1, 1)]), r"components\.weight = 0 .* above 0"),
        (lambda: gaussian_mixture([(1, math.nan, 1)]), r"components\.mean = nan"),
        (lambda: gaussian_mixture([(1, 1, -1)]), r"components\.std = -1 .* at least 0"),
        (lambda: gaussian_mixture([(1, -50, 1)]), "of the draws of this distribution"),
        (lambda: gaussian_mixture([(1, -1, 0)]), "only 0 of the draws"),
        (lambda: gaussian_mixture([(1, 1, 1)], minimum=-1), "minimum = -1"),
        (lambda: choices([]), "values = .* at least one entry"),
        (lambda: choices([1, 0]), "values = 0 .* above 0"),
        (lambda: choices([1, 2], [1]), "weights = .* one for each of the 2 values"),
        (lambda: choices([1, 2], [0, 0]), "weights = .* above 0 for at least one value"),
        (lambda: choices([1, 2], [1, -1]), "weights = -1 .* at least 0"),
    ],
)
def test_what_cannot_be_drawn_from(make, words: str):
    with pytest.raises(InputError, match=words):
        make()


def test_a_distribution_that_can_only_give_zero_ends_with_an_error():
    class OnlyZeros:
        def uniform(self, low: float, high: float, count: int) -> np.ndarray:
            return np.zeros(count)

    with pytest.raises(InputError, match="hardly ever gives a number above 0"):
        uniform(0, 1)(1, OnlyZeros())


@pytest.mark.parametrize("count", [-1, 1.5, "3"])
def test_a_count_is_a_whole_number(count: object):
    with pytest.raises(InputError, match="count = "):
        fixed(1)(count, np.random.default_rng(0))


def same(one: Distribution, other: Distribution) -> bool:
    ours, theirs = (drawn(1_000, np.random.default_rng(3)) for drawn in (one, other))
    return bool(np.array_equal(ours, theirs))


def test_tables_and_arrays_are_components_too():
    triple = gaussian_mixture([(0.5, 1.0, 0.25)])
    assert same(gaussian_mixture([{"weight": 0.5, "mean": 1, "std": 0.25}]), triple)
    assert same(gaussian_mixture(np.array([[0.5, 1.0, 0.25]])), triple)


@pytest.mark.parametrize(
    ("name", "low", "high"), [("mixture-0.5-10", 0.5, 10), ("mixture-2-8", 2, 8)]
)
def test_both_readings_of_0_04_are_there(name: str, low: float, high: float):
    variance, deviation = PAPER_BUDGETS[name], PAPER_BUDGETS[f"{name}-std"]
    assert same(variance, gaussian_mixture([(0.3, low, math.sqrt(0.04)), (0.7, high, 1)]))
    assert same(deviation, gaussian_mixture([(0.3, low, 0.04), (0.7, high, 1)]))


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=50), total=st.integers(1_000, 10**15)
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


def test_a_client_without_a_record_is_refused():
    with pytest.raises(InputError, match=r"total_size = 3 .*all 5 clients; 2 would get no record"):
        share_out(3, [1, 1, 1, 1, 1])


@pytest.mark.parametrize("weights", [[1, 0], [1, -1], [1, np.nan], [1, np.inf]])
def test_weights_are_positive(weights: list[float]):
    with pytest.raises(InputError, match=r"weights\[1\]"):
        share_out(10, weights)

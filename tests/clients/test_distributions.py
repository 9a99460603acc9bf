# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.clients.distributions import Choices, Distribution, Fixed, GaussianMixture, Uniform
from dpcohort.errors import InputError

ALL = [
    Fixed(2),
    Uniform(0, 1),
    Uniform(0.5, 1.5, minimum=0.75),
    GaussianMixture([(0.3, 0.5, 0.2), (0.7, 10, 1)]),
    GaussianMixture([(1, 0, 1)], minimum=0.5),
    Choices([0.5, 2, 8], [1, 0, 3]),
]


@pytest.mark.parametrize("distribution", ALL)
def test_draws_are_positive_floats_and_the_seed_decides(distribution: Distribution):
    draws = distribution.draw(5_000, np.random.default_rng(7))
    assert draws.dtype == np.float64
    assert draws.shape == (5_000,)
    assert (draws > 0).all()
    np.testing.assert_array_equal(draws, distribution.draw(5_000, np.random.default_rng(7)))
    assert distribution.draw(0, np.random.default_rng(7)).shape == (0,)


def test_uniform_draws_fill_their_interval():
    draws = Uniform(2, 4).draw(20_000, np.random.default_rng(0))
    assert 2 <= draws.min() < 2.01
    assert 3.99 < draws.max() <= 4
    assert abs(draws.mean() - 3) < 0.02


def test_nothing_is_clipped_or_dropped_without_a_minimum():
    draws = Uniform(0, 1).draw(20_000, np.random.default_rng(0))
    assert draws.min() < 1e-3


def test_below_the_minimum_is_drawn_again_not_clipped():
    draws = Uniform(0, 1, minimum=0.4).draw(20_000, np.random.default_rng(0))
    assert draws.min() > 0.4  # clipping would leave 8,000 draws at exactly 0.4
    assert abs(draws.mean() - 0.7) < 0.01
    np.testing.assert_allclose(np.quantile(draws, [0.25, 0.75]), [0.55, 0.85], atol=0.01)


def test_the_mixture_has_its_weights_means_and_spreads():
    draws = GaussianMixture([(3, 2, 0.2), (7, 8, 1)]).draw(50_000, np.random.default_rng(0))
    low, high = draws[draws < 4], draws[draws >= 4]
    assert abs(len(low) / 50_000 - 0.3) < 0.01
    assert abs(low.mean() - 2) < 0.01
    assert abs(low.std() - 0.2) < 0.01
    assert abs(high.std() - 1) < 0.02


def test_discarded_draws_come_from_the_whole_mixture_again():
    # Half of the first component is negative, so it must end up with 1/3 of the kept draws.
    draws = GaussianMixture([(1, 0, 0.1), (1, 10, 0.1)]).draw(50_000, np.random.default_rng(0))
    assert abs(np.mean(draws < 5) - 1 / 3) < 0.01
    folded = draws[draws < 5]
    assert abs(folded.mean() - 0.1 * math.sqrt(2 / math.pi)) < 0.003


def test_choices_follow_their_weights():
    draws = Choices([1, 2], [1, 3]).draw(20_000, np.random.default_rng(0))
    assert abs(np.mean(draws == 2) - 0.75) < 0.02
    equal = Choices([1, 2]).draw(20_000, np.random.default_rng(0))
    assert abs(np.mean(equal == 2) - 0.5) < 0.02


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fixed(0), "value = 0 .* above 0"),
        (lambda: Fixed(math.inf), "value = inf"),
        (lambda: Uniform(-1, 1), "low = -1 .* at least 0"),
        (lambda: Uniform(2, 2), "high = 2 .* above 2"),
        (lambda: Uniform(0, math.inf), "high = inf"),
        (lambda: Uniform(0, 1, minimum=1), "minimum = 1 .* below 1"),
        (lambda: Uniform(0, 1, minimum=0.999), "of the draws of this distribution"),
        (lambda: GaussianMixture([]), r"components = \[\] .* at least one entry"),
        (lambda: GaussianMixture("abc"), "components = 'abc'"),
        (lambda: GaussianMixture([(1, 2)]), r"components = \(1, 2\) .* \(weight, mean, std\)"),
        (lambda: GaussianMixture([{"weight": 1}]), "components = .* \\(weight, mean, std\\)"),
        (lambda: GaussianMixture([(0, 1, 1)]), r"components\.weight = 0 .* above 0"),
        (lambda: GaussianMixture([(1, math.nan, 1)]), r"components\.mean = nan"),
        (lambda: GaussianMixture([(1, 1, -1)]), r"components\.std = -1 .* at least 0"),
        (lambda: GaussianMixture([(1, -50, 1)]), "of the draws of this distribution"),
        (lambda: GaussianMixture([(1, -1, 0)]), "only 0 of the draws"),
        (lambda: GaussianMixture([(1, 1, 1)], minimum=-1), "minimum = -1"),
        (lambda: Choices([]), "values = .* at least one entry"),
        (lambda: Choices([1, 0]), "values = 0 .* above 0"),
        (lambda: Choices([1, 2], [1]), "weights = .* one for each of the 2 values"),
        (lambda: Choices([1, 2], [0, 0]), "weights = .* above 0 for at least one value"),
        (lambda: Choices([1, 2], [1, -1]), "weights = -1 .* at least 0"),
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
        Uniform(0, 1).draw(1, OnlyZeros())


@pytest.mark.parametrize("count", [-1, 1.5, "3"])
def test_a_count_is_a_whole_number(count: object):
    with pytest.raises(InputError, match="count = "):
        Fixed(1).draw(count, np.random.default_rng(0))


def test_tables_and_arrays_are_components_too():
    triple = GaussianMixture([(0.5, 1.0, 0.25)])
    assert GaussianMixture([{"weight": 0.5, "mean": 1, "std": 0.25}]) == triple
    assert GaussianMixture(np.array([[0.5, 1.0, 0.25]])) == triple

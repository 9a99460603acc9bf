# SPDX-License-Identifier: Apache-2.0
"""The noise's law at a fixed key, with wrong samplers that the same tests must catch."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpcohort.errors import InputError
from dpcohort.guard import lattice_noise
from dpcohort.guard.lattice_noise import (
    LARGEST_EXPONENT,
    TOTAL_VARIATION,
    delta_of_sampling,
    rounded_gaussian,
)

COUNT = 10**6


@pytest.fixture(scope="module")
def sample():
    from hashlib import shake_128

    blocks = iter(range(10**9))
    return rounded_gaussian(COUNT, 24, lambda size: shake_128(b"law%d" % next(blocks)).digest(size))


def findings(noise, scale):
    """What is wrong with integers that should be round(scale Z)."""
    z = noise / scale
    wrong = []
    if abs(z.std() - 1) > 0.005:
        wrong.append("std")
    if stats.kstest(z, "norm", method="asymp").pvalue < 1e-4:
        wrong.append("law")
    if abs(z.mean()) * math.sqrt(z.size) > 5:
        wrong.append("mean")
    if abs(np.corrcoef(z[1:], z[:-1])[0, 1]) * math.sqrt(z.size) > 5:
        wrong.append("neighbours correlate")
    half = z.size // 2
    if abs(np.corrcoef(z[:half], z[half:])[0, 1]) * math.sqrt(half) > 5:
        wrong.append("halves correlate")
    if abs(stats.kurtosis(z)) > 0.03:
        wrong.append("tails")
    return wrong


def test_the_law_is_a_rounded_normal(sample):
    assert sample.dtype == np.int64
    assert findings(sample, 2**24) == []


@pytest.mark.parametrize(
    ("mutant", "caught"),
    [
        (lambda noise: np.round(noise / 1.25), "std"),
        (lambda noise: np.round(noise * 0.98), "std"),
        (lambda noise: np.concatenate([noise[: COUNT // 2]] * 2), "halves correlate"),
        (lambda noise: np.clip(noise, -2 * 2**24, 2 * 2**24), "std"),
        (lambda noise: noise + 2**17, "mean"),
        (lambda noise: (noise + np.roll(noise, 1)) / math.sqrt(2), "neighbours correlate"),
        (lambda noise: np.sort(np.abs(noise)), "law"),
    ],
    ids=["sigma/1.25", "sigma*0.98", "used twice", "cut off", "shifted", "smeared", "one side"],
)
def test_the_same_tests_catch_wrong_noise(sample, mutant, caught):
    assert caught in findings(mutant(sample), 2**24)


def test_every_lattice_point_has_its_probability(keystream):
    """At a coarse scale each integer's share is a difference of normal distribution functions."""
    noise = rounded_gaussian(400_000, 2, keystream("coarse"))
    points = np.arange(-14, 15)
    edges = np.concatenate([[-np.inf], (points[:-1] + 0.5) / 4, [np.inf]])
    expected = np.diff(stats.norm.cdf(edges)) * noise.size
    counts = np.array(
        [np.sum(noise <= -14), *(np.sum(noise == k) for k in points[1:-1]), np.sum(noise >= 14)]
    )
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    shifted = np.roll(counts, 1)
    assert stats.chisquare(shifted, expected).pvalue < 1e-9


@pytest.mark.parametrize("exponent", [0, 30, LARGEST_EXPONENT])
def test_the_spread_is_two_to_the_exponent(exponent, keystream):
    noise = rounded_gaussian(100_000, exponent, keystream("spread"))
    expected = math.sqrt(4.0**exponent + 1 / 12)
    assert noise.std() == pytest.approx(expected, rel=0.01)


def test_few_coordinates_have_the_law_of_many(keystream):
    """Every coin is thrown for the largest k of a call too, which few calls of many would show."""
    source = keystream("few")
    noise = np.concatenate([rounded_gaussian(3, 20, source) for _ in range(4000)])
    assert noise.std() / 2**20 == pytest.approx(1, rel=0.03)
    assert stats.kstest(noise / 2**20, "norm").pvalue > 1e-4


def test_fresh_noise_never_repeats_and_a_key_does(keystream):
    assert not np.array_equal(rounded_gaussian(100, 40), rounded_gaussian(100, 40))
    first = rounded_gaussian(100, 40, keystream("k"))
    assert np.array_equal(first, rounded_gaussian(100, 40, keystream("k")))
    assert rounded_gaussian(0, 3).size == 0


def test_the_table_of_whole_parts_is_exact():
    high, low = lattice_noise._thresholds()
    weights = [math.exp(-k * k / 2) for k in range(40)]
    for k, (upper, lower) in enumerate(zip(high, low, strict=True)):
        found = Fraction((int(upper) << 64) | lower, 2**128)
        assert float(found) == pytest.approx(sum(weights[: k + 1]) / sum(weights), abs=1e-15)
    bounds = [(int(h) << 64) | lo for h, lo in zip(high, low, strict=True)]
    # Where floats see nothing: the missing mass above k = 12 is e^(-13²/2) / sum, nearly.
    rest = Fraction(2**128 - bounds[12], 2**128)
    assert float(rest) == pytest.approx(math.exp(-(13**2) / 2) / sum(weights), rel=1e-2)


def test_ties_in_the_table_are_decided_by_further_bits():
    high, low = lattice_noise._thresholds()

    def source_of(more):
        parts = iter([int(high[1]).to_bytes(8, "little"), more.to_bytes(8, "little")])
        return lambda size: next(parts)

    assert lattice_noise._whole_part(1, source_of(low[1] - 1)).tolist() == [1]
    assert lattice_noise._whole_part(1, source_of(low[1])).tolist() == [2]


def test_ties_between_words_are_a_coin():
    words = np.full(8, 7, np.uint64)
    found = lattice_noise._less(words, words, lambda size: bytes([0b10110000]))
    assert found.tolist() == [True, False, True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("x", "coin", "expected"),
    [
        (0.5, "_exponential_coin", math.exp(-0.5)),
        (0.999, "_exponential_coin", math.exp(-0.999)),
        (0.7, "_half_square_coin", math.exp(-0.245)),
        (0.3, "_half_coin", 0.15),
    ],
)
def test_the_coins_have_their_probability(x, coin, expected, keystream):
    words = np.full(200_000, int(x * 2**64), np.uint64)
    heads = int(getattr(lattice_noise, coin)(words, keystream("coin")).sum())
    assert stats.binomtest(heads, words.size, expected).pvalue > 1e-4


def test_the_price_of_sampling_is_counted():
    assert delta_of_sampling(0.0, 3, 5) == 2 * 15 * TOTAL_VARIATION
    assert delta_of_sampling(1.0, 10, 1) > delta_of_sampling(0.5, 10, 1)
    assert math.isfinite(delta_of_sampling(1e6, 10, 1))


@pytest.mark.parametrize("exponent", [-1, LARGEST_EXPONENT + 1, 2.5])
def test_exponents_out_of_range_are_refused(exponent):
    with pytest.raises(InputError):
        rounded_gaussian(1, exponent)

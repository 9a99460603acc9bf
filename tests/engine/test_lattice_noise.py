# SPDX-License-Identifier: Apache-2.0
"""The noise's law at a fixed key, with wrong samplers that the same tests must catch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from dpcohort.engine import lattice
from dpcohort.engine.lattice import (
    LARGEST_EXPONENT,
    TOTAL_VARIATION,
    add_rounded_gaussian_,
    delta_of_sampling,
    exact_coordinate,
    release,
    rounded_gaussian,
)
from dpcohort.errors import InputError

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
    """Spans that are not used up are as good as whole ones."""
    source = keystream("few")
    noise = np.concatenate([rounded_gaussian(3, 20, source) for _ in range(4000)])
    assert noise.std() / 2**20 == pytest.approx(1, rel=0.03)
    assert stats.kstest(noise / 2**20, "norm").pvalue > 1e-4


def test_fresh_noise_never_repeats_and_a_key_does(keystream):
    assert not np.array_equal(rounded_gaussian(100, 40), rounded_gaussian(100, 40))
    first = rounded_gaussian(100, 40, keystream("k"))
    assert np.array_equal(first, rounded_gaussian(100, 40, keystream("k")))
    assert rounded_gaussian(0, 3).size == 0


KEY = bytes(range(32))
DEVICES = ["cpu", "cuda"]
POSITIONS = [0, 1, 127, 128, 639, 640, 1279, 1280, 5000, 51_199, 51_200, 65_536, 70_001]


@pytest.mark.parametrize("exponent", [0, 5, 24, 34, LARGEST_EXPONENT])
def test_every_coordinate_is_the_exact_one(exponent):
    """At large exponents float64 decides almost nothing, at small ones almost all."""
    count = 70_002 if exponent <= 24 else 300
    found = add_rounded_gaussian_(torch.zeros(count, dtype=torch.int64), exponent, KEY)
    places = [p for p in POSITIONS if p < count] if exponent <= 24 else range(count)
    assert [int(found[p]) for p in places] == [exact_coordinate(p, exponent, KEY) for p in places]


def test_doubtful_coordinates_are_found_where_float64_is_wrong():
    """Float64 alone gets the last digit of some wrong, and knows of which it may be."""
    exponent, count = LARGEST_EXPONENT, 6000
    trusting, doubtful = lattice._nearly_exact(0, count, exponent, KEY)
    settled = rounded_gaussian(count, exponent, lambda size: KEY)
    exact = np.array([exact_coordinate(place, exponent, KEY) for place in range(count)])
    wrong = np.flatnonzero(trusting.numpy() != exact)
    assert wrong.size > 3
    assert set(wrong.tolist()) <= set(doubtful)
    assert np.array_equal(settled, exact)


def test_the_bits_are_those_of_chacha20():
    """Words 3k and 3k + 1 of the standard's block i begin u and v of pair 128 k + i."""
    stream = Cipher(algorithms.ChaCha20(KEY, bytes(16)), None).encryptor().update(bytes(8192))
    words = np.frombuffer(stream, dtype="<u4").reshape(128, 16).astype(np.float64) / 2.0**32
    u, v = (words[:, which:15:3].T.reshape(-1) for which in (0, 1))
    radius = np.sqrt(-2 * np.log(u))
    both = np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)])
    found = rounded_gaussian(1280, 30, lambda size: KEY)
    assert np.abs(found / 2**30 - both).max() < 1e-6  # 32 of the bits say that much


def test_a_sum_and_its_noise_are_added_in_place():
    total = torch.arange(5000)
    noise = rounded_gaussian(5000, 10, lambda size: KEY)
    assert add_rounded_gaussian_(total, 10, KEY) is total
    assert np.array_equal(total.numpy(), np.arange(5000) + noise)
    with pytest.raises(ValueError, match="32 bytes"):
        add_rounded_gaussian_(total, 10, b"short")


def test_the_tail_is_not_cut_where_24_bit_uniforms_end(monkeypatch):
    """Radii of 24-bit uniforms end at 5.768; this law goes on as far as its words do."""
    real = lattice._stream

    def rigged(key, block, size, name=0):
        stream = bytearray(real(key, block, size, name))
        if block == 0 and name == 0:
            stream[:12] = bytes(10) + b"\x40\x00"  # u of 2^-42, v of nothing: all of the radius
        return bytes(stream)

    monkeypatch.setattr(lattice, "_stream", rigged)
    found = rounded_gaussian(1280, 24, lambda size: KEY)[0] / 2**24
    assert found == pytest.approx(math.sqrt(2 * math.log(2) * 42), abs=1e-2)  # 7.63


@pytest.mark.parametrize("place", DEVICES)
def test_rows_are_released_with_their_own_keys(place, request):
    device = request.getfixturevalue("cuda") if place == "cuda" else "cpu"
    exponents, keys, factors = [24, 34, 3, 30], [KEY, KEY[::-1], bytes(32), KEY], [1.0, 0.5, 2.0, 1]
    for count in (1, 650, 1280, 70_001):
        totals = torch.arange(4 * count).view(4, count)
        noisy = [
            add_rounded_gaussian_(total.clone(), e, k).double() * f
            for total, e, k, f in zip(totals, exponents, keys, factors, strict=True)
        ]
        there = totals.to(device)
        found = release(there, exponents, keys, factors=factors, dtype=torch.float64)
        assert torch.equal(found.cpu(), torch.stack(noisy))
        single = release(there[:1], exponents[:1], keys[:1], factors=[2.0], dtype=torch.float32)
        assert torch.equal(single.cpu(), (2 * noisy[0]).float()[None])


def test_the_price_of_sampling_is_counted():
    assert delta_of_sampling(0.0, 3, 5) == 2 * 15 * TOTAL_VARIATION
    assert delta_of_sampling(1.0, 10, 1) > delta_of_sampling(0.5, 10, 1)
    assert math.isfinite(delta_of_sampling(1e6, 10, 1))


@pytest.mark.parametrize("exponent", [-1, LARGEST_EXPONENT + 1, 2.5])
def test_exponents_out_of_range_are_refused(exponent):
    with pytest.raises(InputError):
        rounded_gaussian(1, exponent)

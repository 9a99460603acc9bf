# SPDX-License-Identifier: Apache-2.0
"""What a record contributes: never above the clip, exactly, and always on the lattice."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpcohort.engine import Lattice
from dpcohort.engine import _lattice as lattice
from dpcohort.engine._lattice import (
    LARGEST_EXPONENT,
    LARGEST_NOISE,
    SMALLEST_NOISE,
    TOTAL_VARIATION,
    add_rounded_gaussian_,
    delta_of_sampling,
    exact_coordinate,
    release,
    rounded_gaussian,
)
from dpcohort.errors import InputError

NOISES = [SMALLEST_NOISE, 0.3, 1.0, 2.0, 777.7, LARGEST_NOISE]


def contribution(lattice, gradient):
    """What one record adds."""
    return lattice.clipped_sum(torch.as_tensor(gradient)[None]).numpy()


def with_noise(lattice, total, source):
    released = lattice.release(torch.from_numpy(total.copy()), source(32), scale=1 / lattice.unit)
    return released.numpy().round().astype(np.int64)


def exact_norm_ratio(lattice, integers):
    """Squared norm over the squared bound (2^e / z)², with no rounding anywhere."""
    square = sum(int(v) ** 2 for v in integers)
    return Fraction(square) * Fraction(lattice.noise_multiplier) ** 2 / 4**lattice.exponent


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    noise=st.sampled_from(NOISES),
    clip=st.floats(1e-6, 1e6),
    scale=st.floats(1e-3, 1e9),
    size=st.integers(1, 400),
    seed=st.integers(0, 10**6),
)
def test_no_contribution_is_longer_than_the_clip(noise, clip, scale, size, seed):
    lattice = Lattice(noise, clip)
    gradient = np.random.default_rng(seed).normal(size=size) * scale * clip
    integers = contribution(lattice, gradient)
    assert exact_norm_ratio(lattice, integers) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_a_contribution_is_the_clipped_gradient(noise):
    lattice = Lattice(noise, 0.5)
    gradient = np.random.default_rng(1).normal(size=50)
    clipped = gradient * 0.5 / np.linalg.norm(gradient)
    found = contribution(lattice, gradient) * lattice.unit
    assert np.abs(found - clipped).max() < 1.1e-5 * 0.5
    small = gradient * 1e-3
    assert np.abs(contribution(lattice, small) * lattice.unit - small).max() <= lattice.unit


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_contributes_nothing_and_takes_nothing_from_others(bad):
    lattice = Lattice(1.0, 1.0)
    rows = torch.tensor([[0.3, 0.4], [1.0, bad], [0.0, 0.2]])
    alone = lattice.clipped_sum(rows[[0, 2]])
    assert torch.equal(lattice.clipped_sum(rows), alone)
    assert contribution(lattice, np.array([1.0, bad])).tolist() == [0, 0]


EXTREMES = [0.0, 1e-45, -1e-38, 1e-20, 1.0, -3e18, 2e19, 3.4e38, -3.4e38, np.inf, np.nan]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.lists(st.sampled_from(EXTREMES), min_size=3, max_size=3), min_size=2),
    clip=st.sampled_from([1e-6, 1e-4, 1.0, 1e6]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_record_moves_the_sum_by_at_most_the_clip(rows, clip, dtype):
    """Measured, not assumed: the same records with and without one, whatever it holds."""
    lattice = Lattice(1.0, clip)
    gradients = torch.tensor(rows, dtype=torch.float64)
    if dtype == torch.float64:
        gradients = gradients * 1e250
    gradients = gradients.to(dtype)
    moved = lattice.clipped_sum(gradients) - lattice.clipped_sum(gradients[1:])
    assert exact_norm_ratio(lattice, moved.tolist()) <= 1
    assert torch.equal(moved, lattice.clipped_sum(gradients[:1]))


def test_a_norm_that_does_not_pass_contributes_nothing(monkeypatch):
    lattice = Lattice(1.0, 1.0)
    monkeypatch.setattr("dpcohort.engine._lattice._SLACK", -0.01)  # a clip that overshoots
    assert contribution(lattice, np.array([3.0, 4.0])).tolist() == [0, 0]


@pytest.mark.parametrize("noise", NOISES)
def test_the_noise_is_z_times_the_largest_contribution(noise, keystream):
    lattice = Lattice(noise, 3.0)
    assert lattice.bound >= 2**19
    assert 2**lattice.exponent / lattice.bound == pytest.approx(noise, rel=1e-12)
    noisy = with_noise(lattice, np.zeros(50_000, np.int64), keystream("n"))
    assert noisy.std() * lattice.unit == pytest.approx(noise * 3.0, rel=0.015)


def test_precision_attack_finds_nothing_on_the_lattice(keystream, monkeypatch):
    """Whatever comes out for an input of 0 also comes out for C; with floats, much does not."""
    monkeypatch.setattr("dpcohort.engine._lattice._BITS", 5)  # few points, so that all are seen
    lattice, count = Lattice(1.0, 1.0), 200_000
    moved = np.full(count, contribution(lattice, np.array([1.0]))[0])
    outputs = with_noise(lattice, np.zeros(count, np.int64), keystream("a"))
    others = with_noise(lattice, moved, keystream("b"))
    centre = set(range(-64, 97))  # from -2 sigma of the one to +2 sigma of the other
    assert centre <= set(outputs.tolist())
    assert centre <= set(others.tolist())
    floats = np.random.default_rng(0).normal(size=count)
    proven = (1.0 + (floats - 1.0)) != floats  # no noise y makes 1 + y equal to this output
    assert proven.mean() > 0.1  # on floats the attack works


@pytest.mark.parametrize(
    ("noise", "clip"),
    [(0.0, 1.0), (1e-9, 1.0), (1e9, 1.0), (float("nan"), 1.0), (1.0, 0.0), (1.0, 1e300)],
)
def test_settings_that_do_not_fit_are_refused(noise, clip):
    with pytest.raises(InputError):
        Lattice(noise, clip)


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


@pytest.mark.parametrize("count", [1, 62, 128, 500, 640, 641, 1300])
def test_rows_have_the_noise_of_their_own_keys(count):
    keys, exponents = [bytes([own]) * 32 for own in range(45)], [20 + own % 3 for own in range(45)]
    totals = torch.zeros(45, count, dtype=torch.int64)
    factors = [1.0 + own for own in range(45)]
    found = lattice.release(totals, exponents, keys, factors=factors, dtype=torch.float64)
    for row in (0, 1, 44):
        for place in {0, count // 2, count - 1}:
            wanted = factors[row] * exact_coordinate(place, exponents[row], keys[row])
            assert float(found[row, place]) == wanted


def test_doubtful_coordinates_are_found_where_float64_is_wrong():
    """Float64 alone gets the last digit of some wrong, and knows of which it may be."""
    exponent, count = LARGEST_EXPONENT, 6000
    (trusting,), doubtful = lattice._nearly_exact(0, count, [exponent], [KEY])
    settled = rounded_gaussian(count, exponent, lambda size: KEY)
    exact = np.array([exact_coordinate(place, exponent, KEY) for place in range(count)])
    wrong = np.flatnonzero(trusting.numpy() != exact)
    assert wrong.size > 3
    assert set(wrong.tolist()) <= {place for _, place in doubtful}
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


@pytest.mark.parametrize("noise", [2.0, 1e-6])
def test_a_large_outer_product_is_clipped_as_its_numbers_are(noise):
    """Pairs above some thousand numbers are never formed for their norm; noise sets the lattice."""
    rng = torch.Generator().manual_seed(4)
    g, a, rest = (torch.randn(6, n, generator=rng, dtype=torch.float64) for n in (80, 70, 9))
    formed = (g[:, :, None] * a[:, None]).flatten(1)
    here, grid = torch.tensor([True] * 5 + [False]), Lattice(noise, 0.5)
    pair, small = grid.clipped_sums([(g, a), (rest,)], here)
    whole, also = grid.clipped_sums([(formed,), (rest,)], here)
    assert int((pair - whole).abs().max()) <= 5  # a rounding for each record that counts
    assert int((small - also).abs().max()) <= 5
    assert pair.any()


def test_sums_too_large_for_exact_products_are_added_as_integers(monkeypatch):
    rows = torch.randn(9, 30, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    usual = Lattice(2.0, 0.5).clipped_sum(rows)
    monkeypatch.setattr(lattice, "_EXACT_IN_FLOAT64", 0.0)
    assert torch.equal(Lattice(2.0, 0.5).clipped_sum(rows), usual)

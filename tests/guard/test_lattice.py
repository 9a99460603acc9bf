# SPDX-License-Identifier: Apache-2.0
"""What a record contributes: never above the clip, exactly, and always on the lattice."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.errors import InputError
from dpcohort.guard.lattice import LARGEST_NOISE, SMALLEST_NOISE, Lattice

NOISES = [SMALLEST_NOISE, 0.3, 1.0, 2.0, 777.7, LARGEST_NOISE]


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
    integers = lattice.contribution(gradient)
    assert exact_norm_ratio(lattice, integers) <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_a_contribution_is_the_clipped_gradient(noise):
    lattice = Lattice(noise, 0.5)
    gradient = np.random.default_rng(1).normal(size=50)
    clipped = gradient * 0.5 / np.linalg.norm(gradient)
    found = lattice.contribution(gradient) * lattice.unit
    assert np.abs(found - clipped).max() < 1.1e-5 * 0.5
    small = gradient * 1e-3
    assert np.abs(lattice.contribution(small) * lattice.unit - small).max() <= lattice.unit


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_what_is_not_finite_contributes_nothing(bad):
    found = Lattice(1.0, 1.0).contribution(np.array([1.0, bad]))
    assert found.tolist() == [0, 0]


def test_a_norm_that_does_not_pass_contributes_nothing(monkeypatch):
    lattice = Lattice(1.0, 1.0)
    monkeypatch.setattr("dpcohort.guard.lattice._SLACK", -0.01)  # a clip that overshoots
    assert lattice.contribution(np.array([3.0, 4.0])).tolist() == [0, 0]


@pytest.mark.parametrize("noise", NOISES)
def test_the_noise_is_z_times_the_largest_contribution(noise, keystream):
    lattice = Lattice(noise, 3.0)
    assert lattice.bound >= 2**23
    assert 2**lattice.exponent / lattice.bound == pytest.approx(noise, rel=1e-12)
    noisy = lattice.with_noise(np.zeros(50_000, np.int64), keystream("n"))
    assert noisy.std() * lattice.unit == pytest.approx(noise * 3.0, rel=0.015)


def test_precision_attack_finds_nothing_on_the_lattice(keystream, monkeypatch):
    """Whatever comes out for an input of 0 also comes out for C; with floats, much does not."""
    monkeypatch.setattr("dpcohort.guard.lattice._BITS", 5)  # few points, so that all are seen
    lattice, count = Lattice(1.0, 1.0), 200_000
    moved = np.full(count, lattice.contribution(np.array([1.0]))[0])
    outputs = lattice.with_noise(np.zeros(count, np.int64), keystream("a"))
    others = lattice.with_noise(moved, keystream("b"))
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


def test_sums_beyond_64_bits_wrap_with_their_noise(keystream):
    """Wrapping around is a function of the noisy sum; an error would be one of the records."""
    lattice, top = Lattice(1.0, 1.0), np.full(9, 2**63 - 1)
    noise = lattice.with_noise(np.zeros(9, np.int64), keystream("w"))
    found = lattice.with_noise(top, keystream("w"))
    assert [int(v) % 2**64 for v in found] == [(2**63 - 1 + int(n)) % 2**64 for n in noise]
    assert (noise > 0).any()  # some of them did

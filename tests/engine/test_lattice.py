# SPDX-License-Identifier: Apache-2.0
"""What a record contributes: never above the clip, exactly, and always on the lattice."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.engine.lattice import LARGEST_NOISE, SMALLEST_NOISE, Lattice
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
    monkeypatch.setattr("dpcohort.engine.lattice._SLACK", -0.01)  # a clip that overshoots
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
    monkeypatch.setattr("dpcohort.engine.lattice._BITS", 5)  # few points, so that all are seen
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

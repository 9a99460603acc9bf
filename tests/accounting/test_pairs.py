# SPDX-License-Identifier: Apache-2.0
"""One step on a grid: inverse functions, masses, and never less than the exact profile."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from dpcohort.accounting._composition import LossPair, loss_at, output_at
from dpcohort.accounting._samplers import SAMPLERS

KINDS = ["remove", "add", "replace", "fixed"]
PARAMETERS = [(0.1, 0.2), (2.0, 0.01), (1e-6, 1e-6), (5.0, 1e-5), (10.0, 0.9), (0.3, 1.0)]


def normal(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def exact_delta(pair, epsilon):
    """δ(ε) of one step in 40 digits, from the definition of the pair."""
    with mp.workdps(40):
        s, r, e = mp.mpf(pair.shift), mp.mpf(pair.rate), mp.mpf(epsilon)
        if pair.kind == "add":
            inside = mp.expm1(-e) / r
            if inside <= -1:
                return mp.mpf(0)
            x = -mp.log1p(inside) / s - s / 2
            p, q = normal(-x), (1 - r) * normal(-x) + r * normal(-x - s)
        elif pair.kind == "replace":
            x = (e / 2 + mp.asinh((1 - r) / r * mp.exp(s**2 / 2) * mp.sinh(e / 2))) / s
            p = (1 - r) * normal(-x) + r * normal(s - x)
            q = (1 - r) * normal(-x) + r * normal(-x - s)
        else:
            x = mp.log1p(mp.expm1(e) / r) / s + s / 2
            p, q = (1 - r) * normal(-x) + r * normal(s - x), normal(-x)
        return p - mp.exp(e) * q


def grid_delta(grid, step, epsilon, *, infinity=True):
    losses = step * (grid.first + np.arange(grid.mass.size))
    finite = grid.mass[losses > epsilon] @ -np.expm1(epsilon - losses[losses > epsilon])
    return finite + (grid.infinity if infinity else 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_output_inverts_loss(kind):
    for shift, rate in PARAMETERS:
        pair = LossPair(kind=kind, shift=shift, rate=rate)
        # Where the loss is flat its inverse is not determined: compare losses, not outputs.
        loss = loss_at(pair, np.linspace(-4, 8, 49))
        found = loss_at(pair, output_at(pair, loss))
        np.testing.assert_allclose(found, loss, rtol=1e-9, atol=1e-15, err_msg=str(pair))


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9, 0.9999, 1 - 1e-6, 1 - 1e-9, 1.0])
@pytest.mark.parametrize("shift", [0.02, 1.0, 20.0])
def test_rounding_of_losses_is_covered_by_far(shift, rate):
    pair = LossPair(kind="remove", shift=shift, rate=rate)
    with mp.workdps(60):

        def exact(x):
            s, r = mp.mpf(shift), mp.mpf(rate)
            return mp.log(1 - r + r * mp.exp(s * mp.mpf(float(x)) - s**2 / 2))

        most = shift * (9 + shift / 2)
        x = np.linspace(-9, shift + 9, 101)
        for output, loss in zip(x, loss_at(pair, x), strict=True):
            assert abs(exact(output) - loss) <= 1e-15 * most
        least = -most if rate == 1 else max(-most, math.log1p(-rate) * (1 - 1e-9))
        top = float(loss_at(pair, x)[-1])
        losses = np.linspace(least, top, 101)
        slop = pair.on_grid((top - least) / 100, tail=1e-18, lowest=least).slop
        for output, loss in zip(output_at(pair, losses), losses, strict=True):
            assert abs(exact(output) - loss) <= 0.2 * slop


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shift", "rate"), PARAMETERS)
def test_grid_is_never_below_the_exact_profile_and_close_to_it(kind, shift, rate):
    pair = LossPair(kind=kind, shift=shift, rate=rate)
    top = float(loss_at(pair, np.array([shift + 6.0]))[0])
    step = top / 400
    lowest = max(float(loss_at(pair, np.array([-7.0]))[0]), -2000 * step)
    grid = pair.on_grid(step, tail=1e-12, lowest=lowest)
    for point in (0.0, 0.3, 1.0, 40.0, 100.5, 200.0, 300.0):
        exact = float(exact_delta(pair, point * step))
        ours = grid_delta(grid, step, point * step)
        assert ours >= exact * (1 - 1e-13)
        if point == round(point):
            # Connecting the dots, nothing is lost at a dot.
            assert ours <= exact * (1 + 1e-5) + 2e-12


@pytest.mark.parametrize("kind", KINDS)
def test_mass_of_p_is_one_and_of_q_at_most_one(kind):
    pair = LossPair(kind=kind, shift=0.7, rate=0.3)
    step = 0.01
    grid = pair.on_grid(step, tail=1e-13, lowest=-20.0)
    losses = step * (grid.first + np.arange(grid.mass.size))
    assert grid.mass.sum() + grid.infinity == pytest.approx(1, abs=1e-11)
    assert grid.mass @ np.exp(-losses) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("kind", ["remove", "replace", "fixed"])
def test_a_mutant_that_forgets_the_infinity_mass_is_seen(kind):
    pair = LossPair(kind=kind, shift=2.0, rate=0.3)
    step = 0.001
    grid = pair.on_grid(step, tail=1e-3, lowest=-20.0)
    exact = float(exact_delta(pair, 1.0))
    assert grid_delta(grid, step, 1.0) >= exact
    assert grid_delta(grid, step, 1.0, infinity=False) < 0.999 * exact


def test_raising_low_losses_only_raises_delta():
    pair = LossPair(kind="replace", shift=1.0, rate=0.2)
    whole = pair.on_grid(0.01, tail=1e-12, lowest=-8.0)
    cut = pair.on_grid(0.01, tail=1e-12, lowest=-0.3)
    assert cut.first > whole.first
    assert cut.mass.sum() == pytest.approx(whole.mass.sum(), abs=1e-12)
    for epsilon in (-0.2, 0.0, 1.0):
        assert grid_delta(cut, 0.01, epsilon) >= grid_delta(whole, 0.01, epsilon) * (1 - 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_distance_is_delta_at_zero(kind):
    for shift, rate in PARAMETERS:
        pair = LossPair(kind=kind, shift=shift, rate=rate)
        exact = float(exact_delta(pair, 0.0))
        assert exact * (1 - 1e-15) <= pair.distance <= exact * (1 + 1e-12), pair


def test_pairs_of_each_contract():
    def kinds(sampler, neighbours):
        pairs = SAMPLERS[sampler].losses(2.0, 0.1, neighbours)
        return [(pair.kind, pair.shift) for pair in pairs]

    assert kinds("poisson", "zero-out") == [("remove", 0.5), ("add", 0.5)]
    assert kinds("poisson", "replace-one") == [("replace", 0.5)]
    assert kinds("fixed", "replace-one") == [("fixed", 1.0)]

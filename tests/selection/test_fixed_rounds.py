# SPDX-License-Identifier: Apache-2.0
"""Corollary 2 for one selection: the paper's derivative, the cubic's root, every T nearby."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from dpcohort.selection.fixed_rounds import SelectionCurve


def random_curve(seed: int) -> SelectionCurve:
    rng = np.random.default_rng(seed)
    bound, start, noise = 10 ** rng.uniform([-1, -1, -4], [1, 1, 1])
    error = float(rng.uniform(0, 1)) * (seed % 4 > 0)
    return SelectionCurve(
        gradient_bound=float(bound), start=float(start), selection_error=error, noise=float(noise)
    )


@pytest.mark.parametrize("steps", [2, 50, 10_000])
def test_the_papers_derivative_is_right(steps: int) -> None:
    """(equ: f(T)), by numerical differentiation in 40 digits."""
    with mp.workdps(40):
        b1, a, q, r = mp.mpf("1.3"), mp.mpf("0.2"), mp.mpf("0.07"), mp.mpf("2.9")

        def f(t: mp.mpf) -> mp.mpf:
            return b1 / 2 * mp.sqrt(a + q * mp.sqrt(t)) + mp.sqrt(r / mp.sqrt(t))

        t = mp.mpf(steps)
        printed = b1 / 8 * q / mp.sqrt(a + q * mp.sqrt(t)) / mp.sqrt(t)
        printed -= mp.sqrt(r) / 4 / t ** mp.mpf("1.25")
        assert mp.almosteq(mp.diff(f, t), printed, rel_eps=mp.mpf("1e-15"))


@pytest.mark.parametrize("seed", range(8))
def test_the_root_of_the_cubic_is_where_the_derivative_vanishes(seed: int) -> None:
    curve = random_curve(seed)
    low, high = curve.root_bracket()
    assert math.nextafter(low, math.inf) >= high
    with mp.workdps(40):
        b1, r, g, q = map(
            mp.mpf, (curve.gradient_bound, curve.start, curve.selection_error, curve.noise)
        )

        def slope(x: mp.mpf) -> mp.mpf:
            return b1 / 2 * q / (2 * mp.sqrt(g**2 + q * x)) - mp.sqrt(r) / (2 * x ** mp.mpf("1.5"))

        # The bracket is right up to the rounding of its own coefficients.
        assert slope(mp.mpf(low) * (1 - mp.mpf("1e-14"))) < 0
        assert slope(mp.mpf(high) * (1 + mp.mpf("1e-14"))) > 0
        coefficients = [b1**2 * q**2, 0, -4 * r * q, -4 * r * g**2]
        roots = mp.polyroots(coefficients, maxsteps=200, extraprec=200)
        positive = [z.real for z in roots if abs(z.imag) < 1e-25 and z.real > 0]
    assert len(positive) == 1
    assert low == pytest.approx(float(positive[0]), rel=1e-14)


# 47: the whole T nearest to the root is not the best one.
@pytest.mark.parametrize("seed", [*range(7), 47])
def test_no_whole_t_is_better(seed: int) -> None:
    curve = random_curve(seed)
    best = curve.best()
    assert best.total_steps is not None
    nearby = range(max(1, best.total_steps - 20), best.total_steps + 21)
    afar = (round(t) for t in np.geomspace(1, 1e12, 200))
    values = [sum(curve.parts(math.sqrt(t))) for t in (*nearby, *afar)]
    assert best.bound <= min(values) * (1 + 2e-14)
    assert best.lower_bound <= min(values)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [1, 7, 100])
def test_the_end_of_the_allowed_range_is_exact(seed: int, most: int) -> None:
    curve = random_curve(seed)
    best = curve.best(most)
    values = [sum(curve.parts(math.sqrt(t))) for t in range(1, most + 1)]
    assert best.bound <= min(values) * (1 + 2e-14)
    assert best.lower_bound <= min(values)
    if best.total_steps == most:
        assert best.bound - best.lower_bound <= 1e-2 * best.bound


def test_without_noise_the_bound_falls_for_ever() -> None:
    curve = SelectionCurve(gradient_bound=2.0, start=1.0, selection_error=0.25, noise=0.0)
    assert curve.best().total_steps is None
    assert curve.best().bound == curve.limit == 0.5
    assert curve.best(1000).total_steps == 1000


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_noise_too_small_to_matter_ends_at_the_end_of_the_search(error: float) -> None:
    curve = SelectionCurve(gradient_bound=1.0, start=1.0, selection_error=error, noise=1e-310)
    best = curve.best()
    assert best.total_steps == 10**60
    assert best.lower_bound == pytest.approx(error, rel=1e-13)

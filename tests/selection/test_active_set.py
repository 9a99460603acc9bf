# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from dpcohort.selection import solver
from dpcohort.selection.solver import Decided, SortedCosts, find_thresholds


def _objective(thresholds):
    return 0.5 * (thresholds[1] - thresholds[0])


def _brute_force(u, a, g0):
    """The optimum over all pairs of sets (L, H), each with its own thresholds, in 60 digits."""
    with mpmath.workdps(60):
        order = sorted(range(len(u)), key=lambda k: u[k] * a[k])
        u, a = [mpf(float(u[k])) for k in order], [mpf(float(a[k])) for k in order]
        total, g0, n = mpmath.fsum(u), mpf(g0), len(u)
        best = None
        for i in range(n + 1):
            for j in range(i, n + 1):
                p = _candidate(u, a, g0, i, j)
                if p is None or abs(mpmath.fsum(p) - total) > mpf(10) ** -50 or min(p) < 0:
                    continue
                bias = g0 + mpmath.fsum(abs(x - y) for x, y in zip(p, u, strict=True))
                noise = mpmath.fsum(c * x * x for c, x in zip(a, p, strict=True))
                value = bias + mpmath.sqrt(bias**2 + noise)
                best = value if best is None else min(best, value)
        return best


def _candidate(u, a, g0, i, j):
    """Probabilities if the first i are raised and those from j on lowered, from scratch."""
    n = len(u)
    if i == 0 and j == n:
        return list(u)
    if i == 0 or j == n:
        return None
    low_r, high_r = mpmath.fsum(1 / c for c in a[:i]), mpmath.fsum(1 / c for c in a[j:])
    low_u, high_u = mpmath.fsum(u[:i]), mpmath.fsum(u[j:])
    work = mpmath.fsum(a[k] * u[k] ** 2 for k in range(i, j))

    def excess(m):
        x, y = (low_u + m) / low_r, (high_u - m) / high_r
        bias = g0 + 2 * m
        noise = work + x * x * low_r + y * y * high_r
        return y - x - 2 * (bias + mpmath.sqrt(bias**2 + noise))

    left, right = mpf(0), high_u
    if excess(left) <= 0 or excess(right) >= 0:
        return None
    for _ in range(200):
        middle = (left + right) / 2
        left, right = (middle, right) if excess(middle) > 0 else (left, middle)
    x, y = (low_u + left) / low_r, (high_u - left) / high_r
    return [x / a[k] if k < i else (y / a[k] if k >= j else u[k]) for k in range(n)]


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_best_over_all_active_sets(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    u, a = rng.dirichlet(np.ones(n)), 10.0 ** rng.uniform(-1, 4, n)
    g0 = float(rng.choice([0.0, 0.4]))
    found = find_thresholds(u, a, Decided(clipping_gap=g0))
    best = _brute_force(u, a, g0)
    unmoved = g0 + np.sqrt(g0**2 + (a * u * u).sum())
    mine = unmoved if found is None else _objective(found)
    assert mine == pytest.approx(float(best), rel=1e-13)


def _population(rng, n):
    a = 10.0 ** rng.uniform(*(np.array([-1, 1]) * rng.choice([1, 3, 6, 12, 40, 100])), n)
    u = rng.dirichlet(np.full(n, rng.choice([0.05, 1.0, 10.0])))
    if rng.random() < 0.3:  # few distinct levels: whole classes stand at a threshold
        a, u = 10.0 ** np.round(np.log10(a)), np.full(n, 1.0 / n)
    if rng.random() < 0.3:
        u[rng.random(n) < 0.2] = 0.0
        u /= u.sum()
    return u, a


def test_counting_into_classes_finds_what_sorting_finds():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        u, a = _population(rng, int(rng.integers(2048, 6000)))
        decided = Decided(
            public=bool(rng.random() < 0.3),
            forced_mass=float(rng.choice([0.0, 0.0, 0.1])),
            clipping_gap=float(rng.choice([0.0, 0.5])),
        )
        if find_thresholds(u, a, decided) is None:
            continue
        bottom, top, _ = solver._survey(u, a)
        counted = solver._by_classes(u, a, bottom, top, decided)
        assert counted is not None
        by_sorting = SortedCosts.of(u, a, decided).thresholds()
        assert _objective(counted) == pytest.approx(_objective(by_sorting), rel=1e-13)
        assert counted[1] == pytest.approx(by_sorting[1], rel=1e-13)
        assert counted[0] == pytest.approx(by_sorting[0], rel=1e-10, abs=1e-300)


def test_sorting_takes_over_where_a_threshold_leaves_its_bracket():
    rng = np.random.default_rng(0)
    u, a = rng.dirichlet(np.ones(500)), 10.0 ** rng.uniform(0, 5, 500)
    right = find_thresholds(u, a, Decided())
    level = np.sort(a * u)
    wrong = (float(level[0]), float(level[3])), (float(level[-4]), float(level[-1]) * 2)
    assert solver._between(u, a, Decided(), *wrong) is None
    around = [(threshold / 2, threshold * 2) for threshold in right]
    again = solver._between(u, a, Decided(), *around)
    assert _objective(again) == pytest.approx(_objective(right), rel=1e-14)


def test_settling_repairs_a_wrong_guess():
    rng = np.random.default_rng(1)
    u, a = rng.dirichlet(np.ones(300)), 10.0 ** rng.uniform(0, 5, 300)
    costs = SortedCosts.of(u, a, Decided())
    right, (low, high) = costs.thresholds(), costs.sets()
    for guess in ((low + 5, high - 5), (1, 299), (150, 150)):
        assert costs.settled(*guess) == right


def test_marginal_costs_far_apart_share_the_first_class():
    """Two thirds of the doubles lie below the classes; the answer must not notice."""
    rng = np.random.default_rng(2)
    n = 4096
    u = np.full(n, 1.0 / n)
    a = np.where(rng.random(n) < 0.6, 10.0 ** rng.uniform(-270, -150, n), 1e6 * rng.random(n))
    found = find_thresholds(u, a, Decided())
    by_sorting = SortedCosts.of(u, a, Decided()).thresholds()
    assert _objective(found) == pytest.approx(_objective(by_sorting), rel=1e-13)


def test_moved_mass_and_prices_belong_together():
    rng = np.random.default_rng(5)
    u, a = rng.dirichlet(np.ones(50)), 10.0 ** rng.uniform(0, 4, 50)
    costs = SortedCosts.of(u, a, Decided())
    for moved in (1e-6, 0.01, 0.2):
        lower, upper = costs.prices_at(moved)
        assert np.maximum(lower / a - u, 0).sum() == pytest.approx(moved, rel=1e-12)
        assert np.maximum(u - upper / a, 0).sum() == pytest.approx(moved, rel=1e-12)

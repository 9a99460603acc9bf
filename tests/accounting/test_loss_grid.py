# SPDX-License-Identifier: Apache-2.0
"""One step's moments on the grid against another quadrature of their definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpcohort.accounting.contour import LossGrid, Pair, frequency, loss_grid, span

PAIRS: tuple[Pair, ...] = ("remove", "add", "replace", "fixed")
CASES = [(0.1, 0.5, 4.0), (0.02, 2.5, 1.5), (0.9, 0.2, 12.0), (0.5, 3.0, 0.4)]


def exact_moment(pair: Pair, rate: float, mu: float, t: complex) -> complex:
    """M(t) from the two densities, or for ``fixed`` from the symmetrised pair; by Gauss's rule."""

    def w(x: np.ndarray) -> np.ndarray:
        return 1 - rate + rate * np.exp(mu * x - mu**2 / 2)

    edges = np.linspace(mu / 2 if pair == "fixed" else -14.0, 45.0, 61)
    nodes, weights = np.polynomial.legendre.leggauss(64)
    half = np.diff(edges)[:, None] / 2
    x = (edges[:-1, None] + half * (1 + nodes)).ravel()
    density = (half * weights).ravel() * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    if pair == "remove":
        return complex((density * w(x) ** (1 + t)).sum())
    if pair == "add":
        return complex((density * w(x) ** (-t)).sum())
    if pair == "replace":
        return complex((density * w(x) ** (1 + t) * w(-x) ** (-t)).sum())
    return 1 + complex((density * (w(x) ** (1 + t) + w(x) ** (-t) - w(x) - 1)).sum())


def moment(grid: LossGrid, t: complex) -> complex:
    total = np.exp(grid.log_mass + t * grid.loss).sum(axis=1)
    if grid.log_mirror is not None and grid.log_atom is not None:
        total = total + np.exp(grid.log_mirror - t * grid.loss).sum(axis=1) + np.exp(grid.log_atom)
    return complex(total[0])


def a_grid(pair: Pair, rate: float, mu: float, order: float, theta: float) -> LossGrid:
    r, m, t = np.array([rate]), np.array([mu]), np.array([order])
    lower, upper = span(pair, r, m, t, np.array([40.0]))
    turns = frequency(pair, r, m, np.array([theta]))
    nodes = int(np.ceil((upper - lower) * turns / (2 * np.pi))[0]) + 2
    return loss_grid(pair, r, m, lower, upper, nodes)


@pytest.mark.parametrize("pair", PAIRS)
def test_moments_off_the_real_line(pair: Pair) -> None:
    for (rate, mu, order), theta in itertools.product(CASES, (0.0, 7.0)):
        grid = a_grid(pair, rate, mu, order, theta)
        exact = exact_moment(pair, rate, mu, complex(order, theta))
        scale = abs(exact_moment(pair, rate, mu, complex(order, 0)))
        assert abs(moment(grid, complex(order, theta)) - exact) < 1e-10 * scale, (rate, mu)


@pytest.mark.parametrize("pair", PAIRS)
def test_masses_add_up_to_one(pair: Pair) -> None:
    assert moment(a_grid(pair, 0.2, 0.8, 3.0, 0.0), 0) == pytest.approx(1.0, abs=1e-11)


@pytest.mark.parametrize("pair", PAIRS)
def test_e_to_the_minus_loss_is_a_density_too(pair: Pair) -> None:
    # E_P[e^-L] = 1 under Q whenever P and Q see the same outcomes
    assert moment(a_grid(pair, 0.2, 0.8, 3.0, 0.0), -1) == pytest.approx(1.0, abs=1e-9)


def test_what_p_hardly_ever_sees_is_left_out() -> None:
    one = np.ones(1)
    _, far = span("remove", 0.01 * one, one, 50 * one, 40 * one)
    _, near = span("remove", 0.01 * one, one, 50 * one, 7 * one)
    assert near[0] == 8.0 < far[0]


def test_a_huge_loss_does_not_overflow() -> None:
    grid = loss_grid(
        "remove",
        rate=np.array([0.5]),
        mu=np.array([50.0]),
        lower=np.array([-9.0]),
        upper=np.array([110.0]),
        nodes=50,
    )
    assert np.isfinite(grid.loss).all()
    assert grid.loss[0, -1] == pytest.approx(50 * 110 - 1250 + np.log(0.5))

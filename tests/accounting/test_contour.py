# SPDX-License-Identifier: Apache-2.0
"""The contour integral against closed forms, and the sides its errors fall on."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from dpcohort.accounting import gaussian_delta
from dpcohort.accounting._calibration import (
    Clients,
    LossGrid,
    Pair,
    chernoff_log_delta,
    clients_of,
    contour_log_delta,
    cumulants,
    frequency,
    loss_grid,
    place_contour,
    saddle_order,
    span,
)
from dpcohort.accounting._closed_forms import amplified_budget


def clients(pair: Pair, epsilon: float, delta: float, rate: float, steps: float) -> Clients:
    one = np.ones(1)
    return clients_of(
        pair, epsilon=epsilon * one, delta=delta * one, rate=rate * one, steps=steps * one
    )


def integral(
    some: Clients,
    mu: float,
    *,
    points: int = 400,
    smoothing: float = 0.0,
    wider: float = 1.0,
    shift: float = 0.0,
) -> SimpleNamespace:
    shifts = np.array([mu])
    order, step, _ = place_contour(some, shifts, np.ones(1))
    log_delta, smoothing_rate, _ = contour_log_delta(
        some,
        shifts,
        order,
        wider * step,
        points=np.array([points]),
        smoothing=np.array([smoothing]),
        shift=shift,
    )
    return SimpleNamespace(log_delta=log_delta, smoothing_rate=smoothing_rate)


@pytest.mark.parametrize("pair", ["remove", "fixed"])
@pytest.mark.parametrize(
    ("epsilon", "rate", "mu"), [(0.1, 0.2, 0.3), (1.0, 0.05, 1.2), (6.0, 0.5, 1.5)]
)
def test_one_step_is_lemma_1_with_equality(
    pair: Pair, epsilon: float, rate: float, mu: float
) -> None:
    inner, _ = amplified_budget(epsilon=epsilon, delta=0.1, sampling_rate=rate)
    exact = np.log(rate * gaussian_delta(epsilon=inner, mu=mu))
    some = clients(pair, epsilon, float(np.exp(exact)), rate, 1)
    step = place_contour(some, np.array([mu]), np.ones(1))[1][0]
    width = 0.01 * min(epsilon, 1.0)  # enough to end the integral, little against epsilon
    # one step has no room for a far order (its losses end at the reach), so take a smaller step
    found = integral(some, mu, points=int(12 / (width * step)), smoothing=width**2, wider=2 / 3)
    assert found.log_delta[0] >= exact
    price = found.smoothing_rate[0] * width**2
    assert found.log_delta[0] == pytest.approx(exact + price, abs=3e-5)


@pytest.mark.parametrize("pair", ["remove", "add", "replace", "fixed"])
def test_smoothing_only_raises_delta_and_its_price_is_known(pair: Pair) -> None:
    some = clients(pair, 1.0, 1e-4, 0.2, 30)
    plain = integral(some, 0.3)
    for smoothing in (1e-6, 1e-5, 1e-4):
        found = integral(some, 0.3, smoothing=smoothing)
        price = found.log_delta[0] - plain.log_delta[0]
        assert price > 0
        assert price == pytest.approx(plain.smoothing_rate[0] * smoothing, rel=0.05)


def test_a_grid_that_would_be_too_large_is_refused_quietly() -> None:
    found = integral(clients("remove", 1.0, 1e-5, 0.1, 3), 1.0, points=10_000_000)
    assert np.isnan(found.log_delta[0])


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
    loss, log_mass, log_mirror, log_atom = grid
    total = np.exp(log_mass + t * loss).sum(axis=1)
    if log_mirror is not None and log_atom is not None:
        total = total + np.exp(log_mirror - t * loss).sum(axis=1) + np.exp(log_atom)
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


def test_the_search_for_the_order_survives_a_bad_start() -> None:
    some, mu = clients("fixed", 3.39729898, 1e-5, 0.03603171, 2), np.array([2 / 1.2144])
    found = [saddle_order(some, mu, np.array([start]))[0][0] for start in (1e-6, 4.787, 1e4)]
    assert max(found) / min(found) < 1.1


def test_any_order_gives_a_valid_bound() -> None:
    some, mu = clients("remove", 1.0, 1e-6, 1 - 1e-12, 4), np.array([0.25])
    exact = np.log(gaussian_delta(epsilon=1.0, mu=0.5))
    for t in (0.1, 1.0, 5.0, 30.0):
        order = np.array([t])
        assert chernoff_log_delta(some, order, cumulants(some, mu, order))[0] >= exact

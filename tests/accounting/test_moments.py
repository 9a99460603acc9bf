# SPDX-License-Identifier: Apache-2.0
"""Cumulants of one step, the orders found from them, and the bound they give."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import comb

from dpcohort.accounting.contour import (
    Clients,
    Pair,
    blocks,
    chernoff_log_delta,
    cumulants,
    grid_sizes,
    saddle_order,
    saddle_point_log_delta,
)
from dpcohort.accounting.gaussian import gaussian_delta

PAIRS: tuple[Pair, ...] = ("remove", "add", "replace", "fixed")


def clients(pair: Pair, epsilon: float, delta: float, rate: float, steps: float) -> Clients:
    one = np.ones(1)
    return Clients.of(
        pair, epsilon=epsilon * one, delta=delta * one, rate=rate * one, steps=steps * one
    )


def test_whole_orders_have_a_closed_form() -> None:
    # E[W^a] is a binomial sum of e^{j(j-1) mu^2/2}
    rate, mu, a = 0.1, 0.7, 6
    j = np.arange(a + 1)
    terms = comb(a, j) * (1 - rate) ** (a - j) * rate**j * np.exp(j * (j - 1) * mu**2 / 2)
    # so small a delta that nothing is left out
    some = clients("remove", 1.0, 1e-60, rate, 10)
    found = cumulants(some, np.array([mu]), np.array([a - 1.0]))
    assert found[0, 0] == pytest.approx(np.log(terms.sum()), rel=1e-12)


@pytest.mark.parametrize("pair", PAIRS)
def test_derivatives_are_those_of_the_value(pair: Pair) -> None:
    some, mu, t, h = clients(pair, 1.0, 1e-6, 0.2, 10), np.array([0.6]), np.array([5.0]), 1e-3
    left, at, right = (cumulants(some, mu, t + shift) for shift in (-h, 0.0, h))
    assert at[1, 0] == pytest.approx((right[0, 0] - left[0, 0]) / (2 * h), rel=1e-5)
    second = (right[0, 0] - 2 * at[0, 0] + left[0, 0]) / h**2
    assert at[2, 0] == pytest.approx(second, rel=1e-4)


@pytest.mark.parametrize("pair", PAIRS)
def test_the_saddle_is_where_the_integrand_is_smallest(pair: Pair) -> None:
    some, mu = clients(pair, 0.5, 1e-5, 0.2, 30), np.array([0.4])

    def exponent(t: np.ndarray) -> float:
        value = some.steps * cumulants(some, mu, t)[0] - some.epsilon * t
        return float((value - np.log(t) - np.log1p(t))[0])

    order, _ = saddle_order(some, mu, np.array([1.0]))
    # the search stops within five percent of the saddle
    assert exponent(order) <= min(exponent(0.9 * order), exponent(1.1 * order))


def test_the_search_for_the_order_survives_a_bad_start() -> None:
    some, mu = clients("fixed", 3.39729898, 1e-5, 0.03603171, 2), np.array([2 / 1.2144])
    found = [saddle_order(some, mu, np.array([start]))[0][0] for start in (1e-6, 4.787, 1e4)]
    assert max(found) / min(found) < 1.1


@pytest.mark.parametrize("steps", [1.0, 20.0, 400.0])
def test_chernoff_bounds_the_gaussian_and_the_saddle_point_is_near(steps: float) -> None:
    # at a rate of nearly one the mechanism is Gaussian with mu sqrt(T)
    some, mu = clients("remove", 1.0, 1e-6, 1 - 1e-12, steps), np.array([0.5 / np.sqrt(steps)])
    order, at = saddle_order(some, mu, np.array([3.0]))
    exact = np.log(gaussian_delta(epsilon=1.0, mu=0.5))
    assert chernoff_log_delta(some, order, at)[0] > exact
    assert saddle_point_log_delta(some, order, at)[0] == pytest.approx(exact, abs=0.1)


def test_any_order_gives_a_valid_bound() -> None:
    some, mu = clients("remove", 1.0, 1e-6, 1 - 1e-12, 4), np.array([0.25])
    exact = np.log(gaussian_delta(epsilon=1.0, mu=0.5))
    for t in (0.1, 1.0, 5.0, 30.0):
        order = np.array([t])
        assert chernoff_log_delta(some, order, cumulants(some, mu, order))[0] >= exact


def test_blocks_cover_every_client_once_and_share_a_key() -> None:
    keys = np.array([3, 1, 3, 3, 2, 1, 3])
    found = list(blocks(keys, keys, limit=6))
    assert sorted(np.concatenate(found).tolist()) == list(range(7))
    assert all(np.unique(keys[group]).size == 1 for group in found)
    assert max(group.size for group in found if keys[group[0]] == 3) == 2
    assert list(blocks(keys[:0], keys[:0], limit=6)) == []


def test_grid_sizes_round_up_to_few_values() -> None:
    assert grid_sizes(np.array([5.0, 6.0, 6.1, 9.0, 100.0])).tolist() == [6, 6, 8, 12, 128]

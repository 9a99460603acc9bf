# SPDX-License-Identifier: Apache-2.0
"""The contour integral against closed forms, and the sides its errors fall on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dpcohort.accounting.contour import (
    Clients,
    Contour,
    Pair,
    contour_log_delta,
    place_contour,
)
from dpcohort.accounting.gaussian import gaussian_delta
from dpcohort.accounting.paper import amplified_budget


def clients(pair: Pair, epsilon: float, delta: float, rate: float, steps: float) -> Clients:
    one = np.ones(1)
    return Clients.of(
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
    placed = place_contour(some, shifts, np.ones(1))
    contour = Contour(order=placed.order, step=wider * placed.step, far_order=placed.far_order)
    log_delta, smoothing_rate, _ = contour_log_delta(
        some,
        shifts,
        contour,
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
    step = place_contour(some, np.array([mu]), np.ones(1)).step[0]
    width = 0.01 * min(epsilon, 1.0)  # enough to end the integral, little against epsilon
    # one step has no room for a far order (its losses end at the reach), so take a smaller step
    found = integral(some, mu, points=int(12 / (width * step)), smoothing=width**2, wider=2 / 3)
    assert found.log_delta[0] >= exact
    price = found.smoothing_rate[0] * width**2
    assert found.log_delta[0] == pytest.approx(exact + price, abs=3e-5)


@pytest.mark.parametrize("steps", [1, 7, 1000, 100_000])
def test_without_sampling_it_is_one_gaussian(steps: int) -> None:
    exact = gaussian_delta(epsilon=1.0, mu=0.4)
    some = clients("remove", 1.0, exact, 1 - 1e-12, steps)
    found = integral(some, 0.4 / np.sqrt(steps), points=400)
    assert np.exp(found.log_delta[0]) / exact == pytest.approx(1.0, abs=3e-5)


def test_replace_one_without_sampling_is_a_gaussian_of_twice_the_shift() -> None:
    exact = gaussian_delta(epsilon=1.0, mu=0.4)
    found = integral(clients("replace", 1.0, exact, 1 - 1e-12, 25), 0.2 / 5.0, points=400)
    assert np.exp(found.log_delta[0]) / exact == pytest.approx(1.0, abs=3e-5)


@pytest.mark.parametrize("pair", ["remove", "add", "replace", "fixed"])
def test_a_coarser_step_only_raises_delta(pair: Pair) -> None:
    some = clients(pair, 1.0, 1e-4, 0.2, 30)
    found = [integral(some, 0.3, wider=w).log_delta[0] for w in (0.5, 1.0, 1.3, 1.6, 2.0)]
    assert (np.diff(found) > -1e-10).all()
    assert found[-1] > found[0] + 1e-4


@pytest.mark.parametrize("pair", ["remove", "add", "replace", "fixed"])
def test_smoothing_only_raises_delta_and_its_price_is_known(pair: Pair) -> None:
    some = clients(pair, 1.0, 1e-4, 0.2, 30)
    plain = integral(some, 0.3)
    for smoothing in (1e-6, 1e-5, 1e-4):
        found = integral(some, 0.3, smoothing=smoothing)
        price = found.log_delta[0] - plain.log_delta[0]
        assert price > 0
        assert price == pytest.approx(plain.smoothing_rate[0] * smoothing, rel=0.05)


@pytest.mark.parametrize("pair", ["remove", "add", "replace", "fixed"])
def test_nodes_elsewhere_give_the_same(pair: Pair) -> None:
    some = clients(pair, 2.0, 1e-6, 0.05, 200)
    first, second = (integral(some, 0.6, points=300, shift=s).log_delta[0] for s in (0.0, 0.37))
    assert first == pytest.approx(second, abs=1e-8)


def test_adding_is_not_worse_than_removing() -> None:
    for rate, mu, steps in ((0.1, 0.5, 20), (0.5, 0.3, 50), (0.02, 1.2, 300)):
        removed = integral(clients("remove", 0.5, 1e-4, rate, steps), mu).log_delta[0]
        added = integral(clients("add", 0.5, 1e-4, rate, steps), mu).log_delta[0]
        assert added <= removed + 1e-9


def test_a_grid_that_would_be_too_large_is_refused_quietly() -> None:
    found = integral(clients("remove", 1.0, 1e-5, 0.1, 3), 1.0, points=10_000_000)
    assert np.isnan(found.log_delta[0])


def test_a_delta_far_below_the_promise_is_said_to_be_small() -> None:
    found = integral(clients("remove", 1.0, 1e-3, 0.1, 10), 0.05, points=400)
    assert found.log_delta[0] <= np.log(1e-3) - 5

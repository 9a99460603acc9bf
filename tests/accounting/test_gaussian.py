# SPDX-License-Identifier: Apache-2.0
"""The Gaussian mechanism against 400-digit arithmetic, and the side its rounding falls on."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from dpcohort.accounting import gaussian_delta, gaussian_mu
from dpcohort.errors import InputError

EPSILONS = [1e-8, 1e-5, 1e-3, 0.05, 0.5, 1.0, 3.0, 12.0, 60.0, 700.0]
DELTAS = [1e-300, 1e-100, 1e-20, 1e-10, 1e-5, 1e-2, 0.3, 0.5, 0.500001, 0.9, 1 - 1e-9, 1 - 1e-15]


def exact_delta(epsilon: float, mu: float) -> mp.mpf:
    e, m = mp.mpf(epsilon), mp.mpf(mu)
    return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_mu_is_just_below_the_exact_one(epsilon: float) -> None:
    with mp.workdps(400):
        for delta in DELTAS:
            mu = gaussian_mu(epsilon=epsilon, delta=delta)
            slope = mp.npdf(mp.mpf(epsilon) / mu - mp.mpf(mu) / 2)
            below = float((mp.mpf(delta) - exact_delta(epsilon, mu)) / slope / mu)
            assert 0 < below < 2e-11, (epsilon, delta)


@pytest.mark.parametrize("epsilon", [0.0, *EPSILONS])
def test_delta_is_just_above_the_exact_one(epsilon: float) -> None:
    with mp.workdps(400):
        for mu in (1e-9, 1e-4, 0.05, 0.099, 0.101, 1.0, 5.0, 36.0):
            exact = exact_delta(epsilon, mu)
            found = mp.mpf(gaussian_delta(epsilon=epsilon, mu=mu))
            if exact < mp.mpf(10) ** -300:
                assert exact <= found < mp.mpf(10) ** -299
            else:
                assert exact <= found <= min(exact * (1 + mp.mpf(2e-10)), 1)


@pytest.mark.parametrize("mu", [98.7, 101.3, 1234.5, 12345.6, 98765.4, 987654.3])
def test_delta_is_above_the_exact_one_where_epsilon_and_mu_are_large(mu: float) -> None:
    with mp.workdps(60):
        for deviations in np.linspace(-3, 30, 67):
            epsilon = mu * (mu / 2 + deviations)
            exact = exact_delta(epsilon, mu)
            assert gaussian_delta(epsilon=epsilon, mu=mu) >= min(exact * (1 + mp.mpf("9e-11")), 1)


def test_arrays_broadcast_and_agree_with_scalars() -> None:
    epsilon, delta = np.array([[0.1], [2.0]]), np.array([1e-9, 1e-5, 0.7])
    mu = gaussian_mu(epsilon=epsilon, delta=delta)
    assert mu.shape == (2, 3)
    assert mu[1, 2] == gaussian_mu(epsilon=2.0, delta=0.7)
    assert isinstance(gaussian_mu(epsilon=1.0, delta=0.1), float)
    assert gaussian_delta(epsilon=epsilon, mu=mu)[0, 1] == gaussian_delta(epsilon=0.1, mu=mu[0, 1])


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("epsilon", {"epsilon": -1.0, "delta": 0.1}),
        ("epsilon", {"epsilon": math.nan, "delta": 0.1}),
        ("epsilon", {"epsilon": math.inf, "delta": 0.1}),
        ("delta", {"epsilon": 1.0, "delta": 0.0}),
        ("delta", {"epsilon": 1.0, "delta": 1.0}),
        ("delta[1]", {"epsilon": 1.0, "delta": [0.1, 2.0]}),
    ],
)
def test_bad_input_is_named(field: str, values: dict[str, float]) -> None:
    with pytest.raises(InputError) as caught:
        gaussian_mu(**values)
    assert caught.value.field == field

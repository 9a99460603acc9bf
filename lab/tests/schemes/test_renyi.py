# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import comb, logsumexp, xlog1py, xlogy

from dpcohort.accounting import certify_epsilon
from dpcohort.errors import InputError
from dpcohort_lab.schemes.sampled_gaussian import renyi_epsilon, renyi_noise, renyi_rate

CASES = [(1.0, 0.01, 200), (2.0, 0.2, 50), (5.0, 1.0, 10), (0.7, 0.05, 5)]


@pytest.mark.parametrize(("noise", "rate", "steps"), CASES)
def test_never_below_the_privacy_loss_distribution_and_near_it(noise, rate, steps):
    tight = certify_epsilon(
        method="pld", delta=1e-5, noise_multiplier=noise, sampling_rate=rate, steps=float(steps)
    )
    found = renyi_epsilon(noise_multiplier=noise, rate=rate, steps=steps, delta=1e-5)
    assert tight * 0.999 <= found <= 1.6 * tight + 0.1


@pytest.mark.parametrize(("noise", "rate", "steps"), CASES)
def test_the_moments_of_every_order_by_hand_and_never_below_them(noise, rate, steps):
    """A(a) = sum_j C(a, j) (1-q)^(a-j) q^j e^{j(j-1)/(2 z^2)}."""
    found = renyi_epsilon(noise_multiplier=noise, rate=rate, steps=steps, delta=1e-5)
    by_hand = math.inf
    for order in (*range(2, 65), 80, 96, 128, 192, 256):
        j = np.arange(order + 1.0)
        terms = np.log(comb(order, j)) + xlogy(j, rate) + xlog1py(order - j, -rate)
        moment = logsumexp(terms + j * (j - 1) / (2 * noise**2)) * steps / (order - 1)
        rest = math.log1p(-1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)
        by_hand = min(by_hand, moment + rest)
    assert by_hand <= found <= by_hand * (1 + 1e-9)


def test_noise_and_rate_invert_epsilon_from_the_safe_side():
    noise = renyi_noise(epsilon=1.0, delta=1e-5, rate=0.1, steps=60)
    assert 0.99 < renyi_epsilon(noise_multiplier=noise, rate=0.1, steps=60, delta=1e-5) <= 1
    rate = renyi_rate(noise_multiplier=noise, epsilon=1.0, delta=1e-5, steps=60)
    assert rate == pytest.approx(0.1, rel=0.01)
    assert renyi_epsilon(noise_multiplier=noise, rate=rate, steps=60, delta=1e-5) <= 1
    assert renyi_rate(noise_multiplier=1e4, epsilon=1.0, delta=1e-5, steps=60) == 1
    assert renyi_rate(noise_multiplier=0.05, epsilon=1e-3, delta=1e-12, steps=60) == 0
    with pytest.raises(InputError, match="epsilon"):
        renyi_noise(epsilon=1e-9, delta=1e-300, rate=1.0, steps=9)

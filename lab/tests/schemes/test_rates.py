# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import certify_epsilon
from dpcohort_lab.schemes.sampled_gaussian import certified_rate, common_noise, largest_rate

CASES = [(0.3, 2.0, 10), (1.0, 4.0, 80), (4.0, 0.8, 40)]


@pytest.mark.parametrize(("epsilon", "noise", "steps"), CASES)
def test_the_largest_rate_certifies_and_a_larger_one_does_not(epsilon, noise, steps):
    rate = largest_rate(noise_multiplier=noise, epsilon=epsilon, delta=1e-5, steps=steps)

    def spent(r, method):
        return certify_epsilon(
            noise_multiplier=noise, delta=1e-5, sampling_rate=r, steps=steps, method=method
        )

    assert spent(rate, "pld") <= epsilon
    # The library's grid is coarser, so it may see up to this much more.
    assert spent(rate, "dp-accounting") <= epsilon * (1 + 5e-4)
    assert spent(1.02 * rate, "dp-accounting") > epsilon


def test_a_hopeless_budget_sits_out():
    assert largest_rate(noise_multiplier=0.3, epsilon=1e-4, delta=1e-9, steps=500) == 0


def test_rates_that_overspend_are_lowered_and_others_kept():
    setting = {"noise_multiplier": 2.0, "epsilon": 1.0, "delta": 1e-5, "steps": 50}
    best = largest_rate(**setting)
    assert 0.5 * best < certified_rate(1.3 * best, **setting) <= 1.001 * best
    assert certified_rate(0.5 * best, **setting) == 0.5 * best


def test_the_common_noise_gives_the_mean_rate_wanted():
    budgets = {"epsilon": np.array([0.5, 2.0, 6.0]), "delta": 1e-5, "steps": np.full(3, 40)}
    weights = np.array([1.0, 2.0, 1.0])
    z = common_noise(mean_rate=0.15, weights=weights, **budgets)
    rates = [
        largest_rate(noise_multiplier=z, epsilon=epsilon, delta=1e-5, steps=40)
        for epsilon in budgets["epsilon"].tolist()
    ]
    assert float(rates @ weights) / 4 == pytest.approx(0.15, rel=0.1)

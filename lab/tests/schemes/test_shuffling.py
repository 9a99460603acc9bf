# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dpcohort_lab.schemes import shuffling
from dpcohort_lab.schemes.shuffling import (
    closed_form_epsilon,
    composed_closed_form,
    local_epsilon,
    shuffled_delta,
    shuffled_epsilon,
)


def clones_by_enumeration(epsilon, e0, n):
    """The two laws of the reduction, outcome by outcome."""
    q = math.exp(e0) / (1 + math.exp(e0))
    laws = ({}, {})
    for c in range(n):
        for a in range(c + 1):
            mass = binom.pmf(c, n - 1, math.exp(-e0)) * binom.pmf(a, c, 0.5)
            for d, weight in ((1, q), (0, 1 - q)):
                for law, point in (
                    (laws[0], (a + d, c - a + 1 - d)),
                    (laws[1], (a + 1 - d, c - a + d)),
                ):
                    law[point] = law.get(point, 0.0) + mass * weight
    return sum(max(p - math.exp(epsilon) * laws[1].get(x, 0.0), 0) for x, p in laws[0].items())


@pytest.mark.parametrize(("e0", "n"), [(0.3, 5), (1.0, 12), (2.5, 30)])
def test_delta_is_that_of_the_clones(e0, n):
    for epsilon in (0.0, 0.1 * e0, 0.5 * e0, 0.9 * e0):
        found = shuffled_delta(np.array([epsilon]), local_epsilon=e0, reports=n)[0]
        assert found == pytest.approx(clones_by_enumeration(epsilon, e0, n), rel=1e-9, abs=2e-14)


def randomised_response_truth(epsilon, e0, n):
    """Shuffled randomised response, all others holding 0: counts of ones, exactly."""
    p = 1 / (1 + math.exp(e0))
    others = binom.pmf(np.arange(n), n - 1, p)
    first = np.convolve(others, [1 - p, p])
    second = np.convolve(others, [p, 1 - p])
    gamma = math.exp(epsilon)
    return max(np.maximum(first - gamma * second, 0).sum(),
               np.maximum(second - gamma * first, 0).sum())  # fmt: skip


@pytest.mark.parametrize(("e0", "n"), list(product([0.2, 1.0, 2.0], [1, 2, 20, 200])))
def test_the_bound_covers_shuffled_randomised_response(e0, n):
    for epsilon in np.linspace(0, e0, 6):
        bound = shuffled_delta(np.array([epsilon]), local_epsilon=e0, reports=n)[0]
        assert bound + 1e-12 >= randomised_response_truth(float(epsilon), e0, n)


@pytest.mark.parametrize(("e0", "n"), [(0.1, 1000), (0.5, 2000), (1.0, 5000), (2.0, 20000)])
def test_the_closed_form_is_above_the_computed_bound(e0, n):
    closed, amplified = closed_form_epsilon(local_epsilon=e0, reports=n, delta=1e-6)
    assert amplified
    at_closed = shuffled_delta(np.array([closed]), local_epsilon=e0, reports=n)[0]
    assert at_closed <= 1e-6


def test_without_its_condition_the_closed_form_gives_nothing_away():
    limit = math.log(2000 / (16 * math.log(2e6)))
    below = closed_form_epsilon(local_epsilon=0.99 * limit, reports=2000, delta=1e-6)
    above = closed_form_epsilon(local_epsilon=1.01 * limit, reports=2000, delta=1e-6)
    assert below[1]
    assert above == (1.01 * limit, False)


@settings(max_examples=6, deadline=None)
@given(e0=st.floats(0.05, 2), reports=st.integers(20, 300), rounds=st.integers(1, 40))
def test_computed_is_never_above_closed_form_or_basic_composition(e0, reports, rounds):
    setting = {"local_epsilon": e0, "reports": reports, "rate": 0.25, "rounds": rounds}
    found = shuffled_epsilon(delta=1e-5, **setting)
    assert found <= composed_closed_form(delta=1e-5, **setting)[0] * (1 + 1e-6)
    assert found <= rounds * math.log1p(0.25 * math.expm1(e0)) * (1 + 1e-6)


@pytest.mark.parametrize("uses", [1, 2, 7])
def test_local_composition_is_that_of_randomised_response(uses):
    e0, delta = 0.7, 1e-3
    q = 1 / (1 + math.exp(-e0))
    found = local_epsilon(report_epsilon=e0, reports=uses, delta=delta)

    def truth(epsilon):
        total = 0.0
        for answers in product([1, 0], repeat=uses):
            right = sum(answers)
            first = q**right * (1 - q) ** (uses - right)
            second = q ** (uses - right) * (1 - q) ** right
            total += max(first - math.exp(epsilon) * second, 0)
        return total

    assert truth(found) <= delta
    assert truth(found - 1e-6) > delta * (1 - 1e-3)
    assert found <= uses * e0


def test_what_the_sum_leaves_out_counts_as_lost(monkeypatch):
    """With a coarse sum the bound is larger, never smaller; and rounding has its share."""
    setting = {"local_epsilon": 2.0, "reports": 4000}
    epsilon = np.array([0.0, 0.2, 0.4])
    fine = shuffled_delta(epsilon, **setting)
    monkeypatch.setattr(shuffling, "_TAIL", 1e-2)
    coarse = shuffled_delta(epsilon, **setting)
    assert (coarse >= fine).all()
    assert coarse[2] > fine[2] + 1e-3  # both tails, about 2 %, less what they would have told
    nearly = shuffled_delta(np.array([2.0 - 1e-9]), **setting)
    assert nearly[0] >= 1e-14


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_sampling_amplifies_by_the_rate_and_no_more(rate):
    """One round: (e, d) of the shuffled reports is (ln(1 + r (e^e - 1)), r d) of the sample."""
    setting = {"local_epsilon": 1.5, "reports": 500}
    delta = 1e-5
    once = shuffled_epsilon(**setting, rate=1.0, rounds=1, delta=delta / rate)
    expected = math.log1p(rate * math.expm1(once))
    found = shuffled_epsilon(**setting, rate=rate, rounds=1, delta=delta)
    assert found == pytest.approx(expected, rel=0.01)

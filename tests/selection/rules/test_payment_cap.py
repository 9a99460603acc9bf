# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection.rules import PaymentCap, PrivacyAware

PRICES = (8.0, 4.0, 2.0, 1.0)


def paid(rule, problem):
    return float(np.array(PRICES) @ rule.select(problem).probabilities)


@pytest.mark.parametrize("spend", [1.0, 0.8, 0.6, 0.4])
def test_the_cap_is_kept_and_used(private_problem, spend):
    rule = PaymentCap(spend=spend, prices=PRICES)
    cap = spend * float(np.array(PRICES) @ private_problem.unbiased)
    free = PrivacyAware().select(private_problem)
    if float(np.array(PRICES) @ free.probabilities) <= cap:
        assert np.array_equal(rule.select(private_problem).probabilities, free.probabilities)
    else:
        assert paid(rule, private_problem) == pytest.approx(cap, rel=1e-6)
        assert paid(rule, private_problem) <= cap


def test_less_money_excludes_the_dear_ones(private_problem):
    found = PaymentCap(spend=0.45, prices=PRICES).select(private_problem).probabilities
    assert found[0] == 0.0
    assert found[3] > private_problem.unbiased[3]


def test_the_default_price_is_one_over_epsilon_and_public_data_are_free(problem):
    found = PaymentCap(spend=0.05).select(problem).probabilities
    price = np.array([1 / 0.5, 1 / 1.0, 1 / 4.0, 0.0])
    assert price @ found <= 0.05 * (price @ problem.unbiased) * (1 + 1e-9)
    assert found[3] > 0.9


def test_only_the_cheapest_can_meet_the_smallest_cap(private_problem):
    least = 1.0 / float(np.array(PRICES) @ private_problem.unbiased)
    found = PaymentCap(spend=least * (1 + 1e-12), prices=PRICES).select(private_problem)
    assert found.probabilities == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=1e-9)


def test_where_nobody_asks_a_price_nothing_is_excluded(private_problem):
    found = PaymentCap(prices=(0.0,) * 4).select(private_problem).probabilities
    assert np.array_equal(found, private_problem.unbiased)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"spend": 0.0}, "spend = 0"),
        ({"spend": 1.5}, "spend = 1.5"),
        ({"prices": (1.0, -1.0)}, r"prices\[1\]"),
        ({"prices": (1.0, 1.0)}, "shape of prices"),
        ({"spend": 0.1, "prices": PRICES}, r"at least 0\.385.* cheapest client"),
    ],
)
def test_what_cannot_be(private_problem, settings, words):
    with pytest.raises(InputError, match=words):
        PaymentCap(**settings).select(private_problem)

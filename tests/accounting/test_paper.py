# SPDX-License-Identifier: Apache-2.0
"""The printed formulas against 50-digit arithmetic over the whole stated range."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import pytest

from dpcohort.accounting import _closed_forms as paper
from dpcohort.errors import InputError

mpf = mp.mpf
GRID = [
    (epsilon, delta, rate)
    for epsilon in (1e-8, 1e-4, 0.3, 0.999999, 1.0, 1.000001, 8.0, 40.0, 300.0, 700.0)
    for delta in (1e-300, 1e-12, 1e-5, 0.1)
    for rate in (1e-6, 1e-3, 0.2133, 0.999999, 1.0)
]


def amplified(epsilon: float, rate: float) -> mp.mpf:
    return mp.log(1 + (mp.exp(mpf(epsilon)) - 1) / mpf(rate))


def close(found: float, exact: mp.mpf) -> bool:
    return abs(mpf(found) / exact - 1) < 2e-14


def test_lemma_1() -> None:
    with mp.workdps(50):
        for epsilon, delta, rate in GRID:
            inner, share = paper.amplified_budget(epsilon=epsilon, delta=delta, sampling_rate=rate)
            assert close(inner, amplified(epsilon, rate)), (epsilon, rate)
            assert close(share, mpf(delta) / mpf(rate))


def test_noise_level_of_algorithm_1() -> None:
    with mp.workdps(50):
        for epsilon, delta, rate in GRID:
            inner = amplified(epsilon, rate)
            term = mp.log(mp.e + mpf(rate) * inner / mpf(delta))
            level = 8 * term / (mpf(613) ** 2 * mpf(rate) ** 2 * inner**2)
            budget = {"epsilon": epsilon, "delta": delta, "sampling_rate": rate}
            assert close(paper.noise_level(**budget, size=613), level)


def test_lemma_2_on_the_amplified_budget_is_the_multiplier() -> None:
    with mp.workdps(50):
        for epsilon, delta, rate in GRID:
            inner, share = amplified(epsilon, rate), mpf(delta) / mpf(rate)
            variance = 8 * 37 * mp.log(mp.e + inner / share) / inner**2
            z = paper.paper_noise_multiplier(
                epsilon=epsilon, delta=delta, sampling_rate=rate, steps=37
            )
            assert close(z, mp.sqrt(variance))


BUDGET = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1}


@pytest.mark.parametrize(
    ("function", "values", "field"),
    [
        (paper.amplified_budget, {**BUDGET, "epsilon": 0.0}, "epsilon"),
        (paper.amplified_budget, {**BUDGET, "delta": 1.0}, "delta"),
        (paper.amplified_budget, {**BUDGET, "sampling_rate": 1.1}, "sampling_rate"),
        (paper.noise_level, {**BUDGET, "size": 0}, "size"),
        (paper.paper_noise_multiplier, {**BUDGET, "steps": 1.5}, "steps"),
        (paper.paper_noise_multiplier, {**BUDGET, "steps": -1}, "steps"),
        (
            paper.paper_noise_multiplier,
            {**BUDGET, "steps": 1, "epsilon": [1.0, math.nan]},
            "epsilon[1]",
        ),
    ],
)
def test_bad_input_is_named(
    function: Callable[..., object], values: dict[str, float], field: str
) -> None:
    with pytest.raises(InputError) as caught:
        function(**values)
    assert caught.value.field == field

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection.assumptions import Constants
from dpcohort.selection.error_terms import checked_distribution, error_terms, privacy_error

CONSTANTS = Constants(
    smoothness=1,
    gradient_bound=1,
    clip=0.5,
    initial_gap=1,
    dissimilarity=0.2,
    clipping_gap=0.3,
    biased_clipping_gap=0.7,
)


def test_every_term_against_the_definition() -> None:
    terms = error_terms(
        CONSTANTS,
        probabilities=[0.2, 0.3, 0.5],
        unbiased=[0.5, 0.25, 0.25],
        noise_levels=[0.01, 0.0, 0.02],
        dimension=7,
    )
    assert terms.selection_gap == pytest.approx(0.3 + 0.05 + 0.25, rel=1e-15)
    assert terms.drift == 0.4
    assert terms.selection_error == pytest.approx(0.6 + 0.3 + 0.4, rel=1e-15)
    assert terms.biased_clipping_error == pytest.approx(1.1, rel=1e-15)
    assert terms.privacy_error == pytest.approx(7 * (0.04 * 0.01 + 0.25 * 0.02), rel=1e-15)


def test_the_exact_model_is_what_independent_draws_add_on_average() -> None:
    """E||n||^2 / (T C^2) by summing over the binomial count of each client's other draws."""
    p = np.array([0.1, 0.2, 0.7])
    levels = np.array([3.0, 0.5, 0.1])
    rounds, cohort, local, dimension = 4, 3, 2, 11
    draws = rounds * cohort
    expected = 0.0
    for share, level in zip(p, levels, strict=True):
        for others in range(draws):
            chance = (
                math.comb(draws - 1, others) * share**others * (1 - share) ** (draws - 1 - others)
            )
            expected += share * chance * level * (1 + others) * local
    expected *= dimension / cohort / (rounds * local)
    exact = privacy_error(
        p, levels * (1 - 1 / draws), dimension=dimension, linear_levels=levels / draws
    )
    assert exact == pytest.approx(expected, rel=1e-13)
    assert exact > privacy_error(p, levels, dimension=dimension)


def test_a_client_never_drawn_may_have_infinite_noise() -> None:
    assert privacy_error([0.0, 1.0], [math.inf, 2.0], dimension=3) == 6.0
    with pytest.raises(InputError, match=r"noise_levels\[0\]"):
        privacy_error([0.1, 0.9], [math.inf, 2.0], dimension=3)


@pytest.mark.parametrize(
    "values", [[], [[0.5, 0.5]], [0.5, 0.6], [-0.1, 1.1], [math.nan, 1.0], ["a", "b"], 1.0]
)
def test_what_is_not_a_distribution_is_refused(values: object) -> None:
    with pytest.raises(InputError, match="unbiased"):
        checked_distribution("unbiased", values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"probabilities": [1.0]}, "probabilities"),
        ({"noise_levels": [1.0]}, "noise_levels"),
        ({"noise_levels": [1.0, -1.0]}, "noise_levels"),
        ({"linear_levels": [1.0]}, "linear_levels"),
        ({"dimension": 0}, "dimension"),
        ({"dimension": 1.5}, "dimension"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], named: str) -> None:
    good: dict[str, object] = {
        "probabilities": [0.5, 0.5],
        "unbiased": [0.5, 0.5],
        "noise_levels": [1.0, 1.0],
        "dimension": 2,
    }
    with pytest.raises(InputError, match=named):
        error_terms(CONSTANTS, **{**good, **change})  # type: ignore[arg-type]

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort_lab.theorems import Constants, convexity, error_terms, privacy_error

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


GOOD: dict[str, Any] = {
    "smoothness": 2.0,
    "gradient_bound": 3.0,
    "clip": 1.5,
    "initial_gap": 1.0,
    "strong_convexity": 0.5,
    "dissimilarity": 0.3,
    "clipping_gap": 0.2,
}


def test_the_part_no_selection_changes_is_the_clipping_gap_plus_the_drift() -> None:
    assert Constants(**GOOD).fixed_gap == pytest.approx(0.2 + 0.3 / 1.5, rel=1e-15)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("smoothness", 0.0),
        ("smoothness", math.nan),
        ("gradient_bound", -1.0),
        ("gradient_bound", math.inf),
        ("clip", 0.0),
        ("clip", "1"),
        ("initial_gap", -0.1),
        ("dissimilarity", -1.0),
        ("clipping_gap", -1.0),
        ("biased_clipping_gap", -1.0),
        ("strong_convexity", 0.0),
        ("step_scale", 0.0),
        ("initial_distance", -1.0),
        ("step_offset", 0.5),
    ],
)
def test_each_bad_constant_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError) as error:
        Constants(**{**GOOD, field: value})
    assert error.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "implied"),
    [
        ("strong_convexity", None, "smoothness"),
        ("strong_convexity", 2.1, "smoothness"),
        ("initial_gap", 9.1, "9"),  # B1^2 / (2 mu) = 9
        ("initial_distance", 6.1, "6"),  # B1 / mu = 6
        ("step_scale", 3.9, "4"),  # B1 / (C mu) = 4
    ],
)
def test_constants_that_no_objective_can_have_are_refused(
    field: str, value: float | None, implied: str
) -> None:
    with pytest.raises(InputError, match=implied) as error:
        convexity(Constants(**{**GOOD, field: value}))
    assert error.value.field == field


def test_what_the_assumptions_imply_exactly_is_accepted() -> None:
    constants = Constants(**{**GOOD, "initial_gap": 9.0, "initial_distance": 6.0, "step_scale": 4})
    assert convexity(constants) == (0.5, 6.0, 4.0)


def test_the_smallest_step_scale_is_the_papers_only_up_to_equality() -> None:
    with pytest.raises(InputError) as error:
        convexity(Constants(**GOOD, step_scale=4.0), as_printed=True)
    assert error.value.field == "step_scale"
    assert convexity(Constants(**GOOD, step_scale=4.01), as_printed=True)[2] == 4.01


def test_a_clip_above_the_gradient_bound_needs_a_larger_step_scale_than_printed() -> None:
    loose = {**GOOD, "clip": 6.0, "step_scale": 1.5}
    assert convexity(Constants(**loose), as_printed=True)[2] == 1.5  # printed limit: 1
    with pytest.raises(InputError, match="at least 2 "):
        convexity(Constants(**loose))

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import pytest

from dpcohort.errors import InputError
from dpcohort.selection.assumptions import Constants, convexity

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

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import re

import numpy as np
import pytest

from dpcohort._validate import choice, float_array, number, whole_number
from dpcohort.errors import InputError


@pytest.mark.parametrize("value", [1, 1.5, np.float32(0.5), np.int64(3), np.float64(2)])
def test_number_accepts_every_kind_of_number(value: object):
    result = number("x", value, above=0)
    assert result == value
    assert type(result) is float


@pytest.mark.parametrize(
    "value",
    [True, "1", None, [1], 1j, math.nan, math.inf, -math.inf, 10**400, np.bool_(True), -1, 0],
)
def test_number_refuses_what_is_not_a_finite_number_inside(value: object):
    with pytest.raises(InputError, match=r"x = .* must be a finite number above 0"):
        number("x", value, above=0)


@pytest.mark.parametrize(
    ("bound", "inside", "outside", "words"),
    [
        ("above", 2.5, 2, "above 2"),
        ("at_least", 2, 1.9, "at least 2"),
        ("below", 1.9, 2, "below 2"),
        ("at_most", 2, 2.1, "at most 2"),
    ],
)
def test_bounds_hold_at_the_edge_and_are_told(bound, inside, outside, words):
    assert number("x", inside, **{bound: 2}) == inside
    np.testing.assert_array_equal(float_array("x", [inside], **{bound: 2}), [inside])
    with pytest.raises(InputError, match=words):
        number("x", outside, **{bound: 2})
    with pytest.raises(InputError, match=re.escape("x[1]") + f".*{words}"):
        float_array("x", [inside, outside], **{bound: 2})


@pytest.mark.parametrize("value", [3, 3.0, np.int32(3), np.float64(3)])
def test_whole_number_accepts_whole_values(value: object):
    result = whole_number("n", value, at_least=3, at_most=3)
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize("value", [2, 4, 3.5, True, "3", None, math.nan, math.inf, -math.inf])
def test_whole_number_refuses_the_rest(value: object):
    with pytest.raises(InputError, match=r"n = .* a whole number at least 3 and at most 3"):
        whole_number("n", value, at_least=3, at_most=3)


def test_choice_suggests_the_nearest_word():
    with pytest.raises(InputError, match=r"sampler = 'poison'.*poisson, fixed.*mean 'poisson'"):
        choice("sampler", "poison", ["poisson", "fixed"])


@pytest.mark.parametrize("values", [["a"], [[1], [1, 2]], [None, "b"], {"a": 1}])
def test_float_array_refuses_what_is_not_numbers(values: object):
    with pytest.raises(InputError, match="numbers only"):
        float_array("x", values)


def test_float_array_lets_infinity_in_only_when_asked_and_never_nan():
    assert float_array("x", [math.inf], allow_infinite=True)[0] == math.inf
    with pytest.raises(InputError, match="finite"):
        float_array("x", [math.inf])
    with pytest.raises(InputError, match="nan"):
        float_array("x", [math.nan], allow_infinite=True)

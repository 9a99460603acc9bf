# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.clients.columns import (
    as_floats,
    as_ids,
    bad_ids,
    columns_of,
    epsilon_step,
    first_problem,
    nearest_id,
    numbered,
)
from dpcohort.errors import InputError


def columns(**changes: object):
    given = {"ids": None, "sizes": [500, 400, 300], "epsilon": 1.0, "delta": 1e-5} | changes
    return columns_of(**given)


def test_nothing_is_wrong_with_good_columns():
    assert first_problem(columns()) is None


@pytest.mark.parametrize(
    ("changes", "row", "field"),
    [
        ({"sizes": [500, 0, 300]}, 1, "size"),
        ({"sizes": [500, 400, 10**18]}, 2, "size"),
        ({"sizes": [500, 400, 10**400]}, 2, "size"),
        ({"sizes": [500, -4, 2.5]}, 1, "size"),
        ({"sizes": np.array([1, 2**64 - 1, 2], dtype=np.uint64)}, 1, "size"),
        ({"epsilon": [1, 1, math.nan]}, 2, "epsilon"),
        ({"epsilon": [1, 700.1, 1]}, 1, "epsilon"),
        ({"epsilon": [1, math.inf, 1]}, 1, "epsilon"),
        ({"delta": [1e-5, 1, 1e-5]}, 1, "delta"),
        ({"delta": [1e-5, 0, 1e-5]}, 1, "delta"),
        ({"delta": [1e-5, None, 1e-5]}, 1, "delta"),
        ({"batch_sizes": [0, 0, -1]}, 2, "batch_size"),
        ({"batch_sizes": [0, 1.5, -1]}, 1, "batch_size"),
        ({"ids": ["a", "b", "a"]}, 2, "id"),
        ({"public": [False, True, False], "epsilon": [1, 2, 1]}, 1, "epsilon"),
        ({"public": [False, True, False], "delta": [1e-5] * 3}, 1, "delta"),
        # the first client with a problem, whatever the field
        ({"sizes": [500, 400, 0], "delta": [1e-5, 2, 1e-5]}, 1, "delta"),
    ],
)
def test_the_first_bad_client_is_found(changes: dict[str, object], row: int, field: str):
    problem = first_problem(columns(**changes))
    assert (problem.row, problem.field) == (row, field)


def test_counts_are_shown_as_counts_and_numbers_as_numbers():
    assert first_problem(columns(sizes=[-4, 1, 1])).given == -4
    assert type(first_problem(columns(sizes=[-4.0, 1, 1])).given) is int
    assert first_problem(columns(sizes=[2.5, 1, 1])).given == 2.5


def test_delta_of_one_over_size_is_too_large_and_just_below_is_not():
    at, below = 1 / 400, np.nextafter(1 / 400, 0) * (1 - 1e-12)
    problem = first_problem(columns(delta=[1e-5, at, 1e-5]))
    assert (problem.row, problem.field) == (1, "delta")
    assert "1/size = 1/400" in problem.allowed
    assert "whole record" in problem.next_step
    assert "allow_large_delta" in problem.next_step
    assert first_problem(columns(delta=[1e-5, below, 1e-5])) is None
    assert first_problem(columns(delta=[1e-5, at, 1e-5]), allow_large_delta=True) is None


@pytest.mark.parametrize("epsilon", [math.inf, 1e308, 701.0, math.nan])
def test_a_huge_or_missing_epsilon_points_to_public_clients(epsilon: float):
    assert "mark the client public" in epsilon_step(epsilon)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, -math.inf])
def test_an_epsilon_that_is_too_small_does_not(epsilon: float):
    assert epsilon_step(epsilon) is None


def test_one_number_stands_for_all_private_clients():
    made = columns(epsilon=2, delta=np.float32(0.5), public=[False, True, False])
    np.testing.assert_array_equal(made.epsilon, [2, np.nan, 2])
    np.testing.assert_array_equal(made.delta, [0.5, np.nan, 0.5])
    np.testing.assert_array_equal(columns(epsilon=np.array(2)).epsilon, [2, 2, 2])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": []}, "at least one client"),
        ({"sizes": 5}, "sizes = 5 .* a flat list of numbers"),
        ({"sizes": [[1, 2], [3]]}, "sizes = .* a flat list of numbers"),
        ({"sizes": [[1, 2], [3, 4]]}, "sizes = .* a flat list of numbers"),
        ({"sizes": ["1", "2", "3"]}, "sizes = .* numbers only"),
        ({"sizes": [True, True, True]}, "sizes = .* numbers only"),
        ({"epsilon": ["1", None, 2]}, "epsilon = '1' .* numbers only"),
        ({"epsilon": [1, 2]}, "epsilon = '2 values' .* one for each of the 3 clients"),
        ({"epsilon": "high"}, "epsilon = 'high' .* a flat list of numbers"),
        ({"delta": [1e-5] * 4}, "delta = '4 values' .* one for each of the 3 clients"),
        ({"batch_sizes": [1]}, "batch_sizes = '1 values' .* one for each of the 3 clients"),
        ({"ids": ["a"]}, "ids = '1 values' .* one for each of the 3 clients"),
        ({"public": [1, 0, 0]}, "public = .* True or False for each of the 3 clients"),
        ({"public": [True]}, "public = .* True or False for each of the 3 clients"),
        ({"public": [[True], [True, False]]}, "public = .* True or False for each"),
    ],
)
def test_what_is_not_a_column(changes: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        columns(**changes)


def test_a_column_is_a_copy():
    mine = np.array([1.0, 2.0])
    as_floats("sizes", mine)[0] = 9
    assert mine[0] == 1


def test_numbered_ids_sort_as_their_numbers():
    ids = numbered("client", 101)
    assert list(ids) == sorted(ids)
    assert (ids[0], ids[-1]) == ("client-000", "client-100")
    assert numbered("client", 1) == ("client-0",)
    assert numbered("client", 0) == ()


def test_good_ids_are_left_alone():
    assert list(bad_ids(("a", "caf\u00e9", "two\nlines", "tab\there", "x" * 1000))) == []


@pytest.mark.parametrize(
    ("ids", "row"),
    [
        (("a", ""), 1),
        (("a", "\x1b[31m"), 1),
        (("a", "\x85"), 1),
        (("a", "\ud800"), 1),
        (("a", "b", "x" * 1001), 2),
    ],
)
def test_an_id_that_cannot_be_used(ids: tuple[str, ...], row: int):
    (bad,) = bad_ids(ids)
    assert (bad.row, bad.given, bad.other_row) == (row, ids[row], None)


def test_a_repeated_id_names_both_rows():
    (bad,) = bad_ids(("a", "b", "c", "b", "a"))
    assert (bad.row, bad.other_row, bad.given) == (3, 1, "b")


def test_only_text_is_an_id():
    with pytest.raises(InputError, match=r"ids = 7 is not allowed: it must be text only"):
        as_ids(["a", 7])
    with pytest.raises(InputError, match=r"ids = 7 is not allowed: it must be one text for each"):
        as_ids(7)


@pytest.mark.parametrize(
    ("word", "expected"), [("Clent-07", "client-07"), ("CLIENT-03", "client-03"), ("zebra", None)]
)
def test_the_nearest_id(word: str, expected: str | None):
    assert nearest_id(word, numbered("client", 20)) == expected


def test_the_nearest_id_keeps_its_case():
    assert nearest_id("northh", ("North", "South")) == "North"


def test_the_nearest_of_very_many_ids_begins_alike():
    ids = numbered("client", 20_000)
    assert nearest_id("client-01234x", ids) == "client-01234"
    assert nearest_id("x" * 1_000_000, ids) is None

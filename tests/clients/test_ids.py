# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.clients.ids import as_ids, bad_ids, nearest_id, numbered
from dpcohort.errors import InputError


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

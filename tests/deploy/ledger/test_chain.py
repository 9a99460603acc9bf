# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest

from dpcohort.deploy.ledger.store import FIRST_LINK, Entry
from dpcohort.errors import VerificationError


@pytest.fixture
def entry():
    return Entry.following(
        (4, "a" * 64), "reserve", {"clip": 1.0}, dataset="d", run="r", round=1, draw=2
    )


def test_the_next_row_links_to_the_last(entry):
    assert (entry.seq, entry.previous) == (5, "a" * 64)
    assert entry.is_whole()
    assert Entry.following(None, "opened", {}).previous == FIRST_LINK


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq", 6),
        ("kind", "release"),
        ("dataset", "e"),
        ("dataset", None),
        ("run", "s"),
        ("round", 0),
        ("round", "1"),
        ("draw", 3),
        ("body", '{"clip":2.0}'),
        ("body", b"x"),
        ("previous", "b" * 64),
        ("hash", "b" * 64),
    ],
)
def test_every_field_is_under_the_hash(entry, field, value):
    assert not replace(entry, **{field: value}).is_whole()


@pytest.mark.parametrize("body", ["", "[1]", "{", b"\xff"])
def test_a_body_that_is_no_object(entry, body):
    with pytest.raises(VerificationError, match="entry 5"):
        replace(entry, body=body).content()

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.deploy.formats import checked_name as name
from dpcohort.deploy.ledger.terms import DrawKey
from dpcohort.errors import InputError


@pytest.mark.parametrize("bad", ["", " a", "a ", "a\nb", "x" * 201, None, 3, b"a", "a\x00"])
def test_bad_names_are_refused(bad):
    with pytest.raises(InputError, match="dataset"):
        name("dataset", bad)


def test_any_printable_name_will_do():
    assert name("run", "Frühling 2026 / 'x'; --") == "Frühling 2026 / 'x'; --"


@pytest.mark.parametrize("field", ["round", "draw"])
@pytest.mark.parametrize("bad", [-1, 1.5, float("nan"), "0", None, True, 10**10])
def test_bad_positions_are_refused(field, bad):
    values = {"dataset": "d", "run": "r", "round": 0, "draw": 0, field: bad}
    with pytest.raises(InputError, match=field):
        DrawKey(**values)


def test_equal_keys_are_one_key():
    one = DrawKey(dataset="d", run="r", round=1, draw=2)
    assert {one, DrawKey(dataset="d", run="r", round=1.0, draw=2)} == {one}

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.errors import InputError
from dpcohort.lab.schemes.card import Card

WORDS = {
    "name": "x",
    "title": "t",
    "neighbours": "zero-out",
    "sees": "all",
    "accountant": "a",
    "needs": "n",
    "reference": "r",
}


def test_a_card_says_its_unit_and_its_source():
    card = Card(unit="client", source="read", formula="f", **WORDS)
    assert card.has_formula
    assert card.to_dict()["unit"] == "client"


def test_an_unknown_unit_or_source_is_refused():
    with pytest.raises(InputError, match="record"):
        Card(unit="recrod", source="read", **WORDS)
    with pytest.raises(InputError, match="abstract only"):
        Card(unit="record", source="abstract", **WORDS)

# SPDX-License-Identifier: Apache-2.0
"""docs/research/schemes.md says of every scheme what its card says."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpcohort_lab.schemes.named import SCHEMES, make_scheme

RESEARCH = Path(__file__).parents[3] / "docs" / "research"
TEXT = (RESEARCH / "schemes.md").read_text()
LOG = (RESEARCH / "schemes" / "log.md").read_text()


@pytest.mark.parametrize("name", SCHEMES)
def test_the_units_in_the_document_are_those_of_the_cards(name):
    card = make_scheme(name).card
    row = f"| `{name}` | {card['unit']} | {card['neighbours']} | {card['sees']} | {card['needs']} |"
    assert row in TEXT


def test_the_printed_table_has_every_scheme_in_every_mode():
    block = LOG.split("## One table")[1].split("```")[1]
    for name in SCHEMES:
        labels = {line.split("  ")[0].strip() for line in block.splitlines()}
        assert name in labels
        if make_scheme(name).card["formula"]:
            assert f"{name} (formula)" in labels

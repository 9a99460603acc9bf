# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/rules.md list the rules that exist, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpcohort.aggregation import AGGREGATIONS
from dpcohort.selection.rules import COLUMN_RULES, RULES

TEXT = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()


@pytest.mark.parametrize(
    ("heading", "names"),
    [("## Selection", [*RULES, *COLUMN_RULES]), ("## Aggregation", [*AGGREGATIONS])],
)
def test_the_table_lists_every_rule_once(heading, names):
    section = TEXT.split(heading)[1].split("\n## ")[0]
    told = re.findall(r"^\| `([a-z-]+)` \|", section, re.M)
    assert sorted(told) == sorted(names)


def test_every_row_is_whole():
    rows = re.findall(r"^\| `[a-z-]+` \|.*$", TEXT, re.M)
    assert all(row.replace(r"\|", "").count("|") == 6 for row in rows)

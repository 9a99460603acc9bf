# SPDX-License-Identifier: Apache-2.0
"""The page of rules lists those that exist, and no others; its examples are the files'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpcohort.plugins import RULES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "rules.md").read_text()
HEADINGS = {"selection": "## Selection", "adaptive": "## Adaptive", "aggregation": "## Aggregation"}


def section(kind):
    return TEXT.split(HEADINGS[kind])[1].split("\n## ")[0]


@pytest.mark.parametrize("kind", RULES)
def test_the_table_lists_every_rule_once(kind):
    told = re.findall(r"^\| `([a-z-]+)` \|", section(kind), re.M)
    assert sorted(told) == sorted(RULES[kind])


@pytest.mark.parametrize("kind", RULES)
def test_every_row_is_whole(kind):
    rows = re.findall(r"^\| `[a-z-]+` \|.*$", section(kind), re.M)
    assert rows
    assert all(row.replace(r"\|", "").count("|") == 6 for row in rows)


@pytest.mark.parametrize("name", ["square_root", "median", "least_heard"])
def test_the_page_shows_the_examples_that_run(name):
    assert (ROOT / "examples" / "plugins" / f"{name}.py").exists()
    assert f"{{literalinclude}} ../../examples/plugins/{name}.py" in TEXT

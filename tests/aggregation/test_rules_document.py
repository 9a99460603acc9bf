# SPDX-License-Identifier: Apache-2.0
"""The page of rules lists those that exist, and no others; its examples are the files'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpcohort.plugins import RULES, rule_names

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "rules.md").read_text()
HEADINGS = {"selection": "## Selection", "adaptive": "## Adaptive", "aggregation": "## Aggregation"}


def section(kind):
    return TEXT.split(HEADINGS[kind])[1].split("\n## ")[0]


@pytest.mark.parametrize("kind", RULES)
def test_the_table_lists_every_rule_once(kind):
    told = re.findall(r"^\| `([a-z-]+)` \|", section(kind), re.M)
    assert sorted(told) == sorted(rule_names(kind))  # those of the lab too

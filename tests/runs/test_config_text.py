# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcohort.config import EXAMPLES, commented_config
from dpcohort.errors import InputError
from dpcohort.runs.config_text import toml_text

TEXT = st.text(st.characters(blacklist_categories=("Cs",)))
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8
)


@given(st.dictionaries(TEXT, VALUES))
def test_reads_back_equal(values):
    assert tomllib.loads(toml_text(values)) == values


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_reads_back_equal(example):
    values = tomllib.loads(commented_config(example))
    assert tomllib.loads(toml_text(values)) == values


def test_other_values_are_refused():
    with pytest.raises(InputError, match="config"):
        toml_text({"a": {"b": object()}})

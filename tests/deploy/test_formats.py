# SPDX-License-Identifier: Apache-2.0
"""One base for files and messages: what is wrong is said once, and says where."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from dpcohort.deploy._formats import Format, Name, bounded, read_toml, replace, whole
from dpcohort.errors import FileFormatError, InputError


class Part(Format):
    size: Annotated[float, bounded(above=0)]
    text: str = ""


class Whole(Format):
    name: Name
    count: Annotated[int, whole(at_least=1)] = 1
    part: Part = Part(size=1.0)
    parts: Annotated[tuple[Part, ...], Field(strict=False)] = ()


GOOD = {"name": "a", "count": 2, "part": {"size": 0.5}, "parts": [{"size": 1}, {"size": 2}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nam": 1}, "key = 'nam' is not allowed: .* Did you mean 'name'?"),
        ({"name": " a"}, "^name = ' a' is not allowed"),
        ({"count": 0}, "^count = 0 is not allowed: it must be a whole number at least 1"),
        ({"count": "2"}, "^count = '2' is not allowed"),
        ({"part": {}}, r"^\[part\] the key 'size' is missing"),
        ({"part": {"size": 1, "siez": 1}}, r"^\[part\] key = 'siez'.*Did you mean 'size'"),
        ({"part": {"size": 1, "text": 3}}, r"^\[part\] text = 3 .* text in quotes"),
        ({"parts": [{"size": 1}, {"size": -1}]}, r"^\[parts\[1\]\] size = -1"),
        ({"parts": {"size": 1}}, "^parts = .* a list of tables"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change, said):
    with pytest.raises(InputError, match=said):
        Whole(**{**GOOD, **change})
    assert Whole(**Whole(**GOOD).to_dict()) == Whole(**GOOD)


def test_nothing_is_changed_silently_and_changes_are_checked():
    found = Whole(**GOOD)
    assert replace(found, count=3.0).count == 3
    with pytest.raises(InputError, match="count"):
        replace(found, count=3.5)
    with pytest.raises(ValueError, match="frozen"):
        found.count = 3


def test_a_file_is_named_in_every_error(tmp_path):
    path = tmp_path / "whole.toml"
    for text, said in (("name = ", "not valid TOML"), ("count = 2", "'name' is missing")):
        path.write_text(text)
        with pytest.raises(FileFormatError, match=rf"whole\.toml: .*{said}"):
            Whole.from_toml(path)
    path.write_text("name = 'a'" + " " * 100)
    with pytest.raises(FileFormatError, match="at most 100 are allowed"):
        read_toml(path, at_most_bytes=100)

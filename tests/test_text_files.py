# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcohort.errors import FileFormatError, InputError
from dpcohort.text_files import parse_json, parse_toml, read_utf8, toml_text


def test_a_byte_order_mark_is_taken_off(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfid\r\n")
    assert read_utf8(path, at_most_bytes=10_000) == b"id\r\n"


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("id\n".encode("utf-16"), None, "UTF-16"),
        ("id\n".encode("utf-16-le"), 1, "NUL byte"),
        (b"a\nb\r\nc\0", 3, "NUL byte"),
        (b"a\rb\n\xff", 3, "0xff is not valid UTF-8"),
        ("a\ncaf\u00e9".encode("latin-1"), 2, "0xe9 is not valid UTF-8"),
    ],
)
def test_what_is_not_utf8_is_named_with_its_line(tmp_path: Path, content, line, words):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=words) as caught:
        read_utf8(path, at_most_bytes=10_000)
    assert caught.value.line == line
    assert str(path) in str(caught.value)
    assert "save it as UTF-8" in str(caught.value)


def test_a_missing_file(tmp_path: Path):
    with pytest.raises(FileFormatError, match=r"nowhere\.csv: there is no such file") as caught:
        read_utf8(tmp_path / "nowhere.csv", at_most_bytes=10_000)
    assert caught.value.exit_code == 2


def test_a_pipe_is_refused_before_it_blocks(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="not a regular file"):
        read_utf8(tmp_path / "pipe", at_most_bytes=10_000)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_an_impossible_path(path: str):
    with pytest.raises(FileFormatError, match=r"cannot be read|no such file"):
        read_utf8(path, at_most_bytes=10_000)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "secret.csv"
    path.write_text("id")

    def refuse(path: Path, at_most: int) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dpcohort.text_files.read_bounded", refuse)
    with pytest.raises(FileFormatError, match=r"secret\.csv: the file cannot be read .permission"):
        read_utf8(path, at_most_bytes=10_000)


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("12345")
    assert read_utf8(path, at_most_bytes=5) == b"12345"
    with pytest.raises(FileFormatError, match=r"5 bytes; at most 4"):
        read_utf8(path, at_most_bytes=4)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 65 + "]" * 65, "a." * 65 + "a = 1", "[" + "a." * 100_000 + "a]"]
)
def test_tables_may_not_be_nested_without_end(text):
    with pytest.raises(ValueError, match=r"nested too deeply: .* 64 deep"):
        parse_toml(text)
    assert parse_toml("a." * 62 + "a = 1 # a.b")["a"]


@pytest.mark.parametrize("depth", [65, 900, 100_000])
def test_json_may_not_be_nested_without_end(depth):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json('{"a":' * (depth - 1) + "[]" + "}" * (depth - 1))
    assert parse_json("[" * 64 + "]" * 64)


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


def test_other_values_are_refused():
    with pytest.raises(InputError, match="config"):
        toml_text({"a": {"b": object()}})

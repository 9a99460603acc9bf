# SPDX-License-Identifier: Apache-2.0
"""Text files people hand over, read whole and checked; and configurations written back as TOML.

They come from editors and spreadsheets, so a byte order mark is accepted and UTF-16,
NUL bytes and broken encodings are named for what they are, with the line.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import DEEPEST_NESTING, read_bounded

__all__ = [
    "csv_separator",
    "finite_json",
    "is_table",
    "number_in",
    "parse_json",
    "parse_toml",
    "read_utf8",
    "toml_text",
]


_LINE_END = re.compile(rb"\r\n|\r|\n")
_NAME = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
#: A key of more parts than tables may be deep; reading one takes the square of its length.
_DEEP_KEY = rf"(?<![A-Za-z0-9_-]){_NAME}(?:[ \t]*+\.[ \t]*+{_NAME}){{{DEEPEST_NESTING}}}"
_TOO_DEEP = f"nested too deeply: tables and lists may be {DEEPEST_NESTING} deep"
_SAVE_AS_UTF8 = "save it as UTF-8 (in a spreadsheet: 'CSV UTF-8')"


def read_utf8(path: str | Path, *, at_most_bytes: int) -> bytes:
    """The bytes of a text file, without a byte order mark, known to be valid UTF-8.

    Args:
        path: the file.
        at_most_bytes: refuse a longer file before reading it.

    Returns:
        The content as bytes, so that a caller may decode it in parts.

    Raises:
        FileFormatError: if the file is missing, unreadable, not a file, or not UTF-8 text.

    Example:
        >>> read_utf8("no-such-file.csv", at_most_bytes=1000)
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: no-such-file.csv: there is no such file
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise FileFormatError(path, "this is a directory, not a file")
        if target.exists() and not target.is_file():
            raise FileFormatError(path, "this is not a regular file; save the text to a file first")
        content = read_bounded(path, at_most_bytes)
    except FileFormatError:
        raise
    except FileNotFoundError:
        raise FileFormatError(path, "there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path itself
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise FileFormatError(path, f"the file cannot be read ({reason.lower()})") from None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise FileFormatError(path, f"the file is UTF-16, not UTF-8; {_SAVE_AS_UTF8}")
    content = content.removeprefix(codecs.BOM_UTF8)
    nul = content.find(b"\0")
    if nul >= 0:
        line = _line_at(content, nul)
        problem = f"there is a NUL byte: a binary file, or UTF-16 text; {_SAVE_AS_UTF8}"
        raise FileFormatError(path, problem, line=line)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"0x{content[error.start]:02x}"
        problem = f"the byte {byte} is not valid UTF-8; {_SAVE_AS_UTF8}"
        raise FileFormatError(path, problem, line=_line_at(content, error.start)) from None
    return content


@contextmanager
def of_file(
    path: str | Path, words: str = "{}", errors: tuple[type[Exception], ...] = (InputError,)
) -> Iterator[None]:
    """Errors of the block name the file that they are about.

    Args:
        path: the file.
        words: what is said of it, with the error in the braces.
        errors: what the file may cause.

    Raises:
        FileFormatError: in the place of such an error.

    Example:
        >>> with of_file("sizes.txt", "not a number ({})", (ValueError,)):
        ...     int("x")
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: sizes.txt: not a number (invalid literal ...)
    """
    try:
        yield
    except FileFormatError:
        raise
    except errors as error:
        raise FileFormatError(path, words.format(error)) from None


_THOUSANDS = r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+"


def is_table(name: str | Path) -> bool:
    """Whether a file is a table of records, by how its name ends.

    Example:
        >>> is_table("Wards.CSV"), is_table("digits")
        (True, False)
    """
    return str(name).lower().endswith((".csv", ".tsv", ".parquet"))


def csv_separator(content: bytes, separators: str = ",;") -> str:
    r"""What separates the columns of a CSV text: what is most often in its first line with any.

    Example:
        >>> csv_separator("id;size\na;1,5\n".encode())
        ';'
    """
    for line in content[:100_000].splitlines():
        text = line.decode("utf-8", "replace")
        if any(one in text for one in separators):
            return max(separators, key=text.count)
    return separators[0]


def number_in(text: str) -> float | None:
    """The number that a cell holds; None if it holds none, or one that can be read in two ways.

    A comma is the decimal mark of a number without a point, unless it may as well set off
    thousands, as in 1,500. What a person would not read as they see it (1_000, nan, digits of other
    scripts) is no number.

    Example:
        >>> number_in(" 0,25 "), number_in("1e-5"), number_in("1,500"), number_in("abc")
        (0.25, 1e-05, None, None)
    """
    word = text.strip()
    if not word.isascii() or "_" in word:
        return None
    if word.count(",") == 1 and "." not in word and not re.fullmatch(_THOUSANDS, word):
        word = word.replace(",", ".")
    try:
        value = float(word)
    except ValueError:
        return None
    return None if value != value else value


def parse_json(
    text: str | bytes,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The value of a JSON text, nested no deeper than ``DEEPEST_NESTING``.

    Raises:
        ValueError: it is not JSON (``json.JSONDecodeError``), or is nested too deeply; whatever
            came of a file or a message, nothing else is raised.

    Example:
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ...
        ValueError: nested too deeply: tables and lists may be 64 deep
    """
    try:
        value = json.loads(text, parse_constant=parse_constant, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text, nested no deeper than ``DEEPEST_NESTING``.

    Raises:
        ValueError: it is not TOML (``tomllib.TOMLDecodeError``), or is nested too deeply; nothing
            else is raised.

    Example:
        >>> parse_toml("a." * 100_000 + "a = 1")
        Traceback (most recent call last):
        ...
        ValueError: nested too deeply: tables and lists may be 64 deep
    """
    if re.search(_DEEP_KEY, text):
        raise ValueError(_TOO_DEEP)
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(values)
    return values


def _check_depth(value: Any, levels: int = DEEPEST_NESTING) -> None:
    items = value.values() if isinstance(value, dict) else value if type(value) is list else ()
    # Columns of a million numbers are seen to hold nothing deeper at the cost of their types.
    if not {list, dict} & set(map(type, items)):
        return
    if levels == 1:
        raise ValueError(_TOO_DEEP)
    for item in items:
        if isinstance(item, list | dict):
            _check_depth(item, levels - 1)


def _line_at(content: bytes, position: int) -> int:
    return 1 + sum(1 for _ in _LINE_END.finditer(content, 0, position))


_BARE_KEY = r"[A-Za-z0-9_-]+"


def toml_text(values: Mapping[str, Any]) -> str:
    """Tables of plain values as TOML; reading it back gives equal tables.

    Example:
        >>> print(toml_text({"training": {"rounds": 3, "clip": 1.0}}), end="")
        [training]
        rounds = 3
        clip = 1.0
    """
    loose = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    tables = [
        f"[{_toml_key(name)}]\n{_toml_lines(table)}"
        for name, table in values.items()
        if isinstance(table, Mapping)
    ]
    return "\n".join([_toml_lines(loose), *tables] if loose else tables)


def _toml_lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_toml_key(key)} = {toml_value(value)}\n" for key, value in table.items())


def _toml_key(name: str) -> str:
    return name if re.fullmatch(_BARE_KEY, name) else toml_value(name)


def toml_value(value: Any) -> str:
    """One value as TOML writes it, in a line.

    Example:
        >>> toml_value({"bounds": [0, 1.5]})
        '{ bounds = [0, 1.5] }'
    """
    if isinstance(value, float):
        return repr(float(value))  # nan and inf are called so in TOML too
    if isinstance(value, str | int):  # a string of TOML is one of JSON, but for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_toml_key(key)} = {toml_value(v)}" for key, v in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise InputError("config", given=value, allowed="text, numbers, lists and tables")


def finite_json(value: Any) -> Any:
    """The value with every number that JSON cannot hold replaced by null.

    Example:
        >>> finite_json({"a": (1.0, float("nan"))})
        {'a': [1.0, None]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return value

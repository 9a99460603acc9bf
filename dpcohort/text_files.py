# SPDX-License-Identifier: Apache-2.0
"""Text files people hand over, read whole and checked before anything is made of them.

They come from editors and spreadsheets, so a byte order mark is accepted and UTF-16,
NUL bytes and broken encodings are named for what they are, with the line.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from dpcohort.errors import FileFormatError

__all__ = ["read_utf8"]

_LINE_END = re.compile(rb"\r\n|\r|\n")
_SAVE_AS_UTF8 = "save it as UTF-8 (in a spreadsheet: 'CSV UTF-8')"


def read_utf8(path: str | Path, *, at_most_bytes: int | None = None) -> bytes:
    """The bytes of a text file, without a byte order mark, known to be valid UTF-8.

    Args:
        path: the file.
        at_most_bytes: refuse a longer file before reading it.

    Returns:
        The content as bytes, so that a caller may decode it in parts.

    Raises:
        FileFormatError: if the file is missing, unreadable, not a file, or not UTF-8 text.

    Example:
        >>> read_utf8("no-such-file.csv")
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: no-such-file.csv: there is no such file
    """
    try:
        content = _read_file(path, at_most_bytes)
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


def _read_file(path: str | Path, at_most_bytes: int | None) -> bytes:
    target = Path(path)
    if target.is_dir():
        raise FileFormatError(path, "this is a directory, not a file")
    if target.exists() and not target.is_file():
        raise FileFormatError(path, "this is not a regular file; save the text to a file first")
    if at_most_bytes is not None and (size := target.stat().st_size) > at_most_bytes:
        problem = f"the file has {size:,} bytes; at most {at_most_bytes:,} are allowed"
        raise FileFormatError(path, problem)
    return target.read_bytes()


def _line_at(content: bytes, position: int) -> int:
    return 1 + sum(1 for _ in _LINE_END.finditer(content, 0, position))

# SPDX-License-Identifier: Apache-2.0
"""A comma-separated table: its header checked, its rows fast or with their true lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dpcohort._validate import nearest
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_CLIENT_LIST
from dpcohort.text_files import read_utf8

__all__ = ["Row", "Table", "is_blank", "open_table"]


class Row(NamedTuple):
    """The cells of one row and the line of the file it starts on."""

    line: int
    cells: list[str]


@dataclass(frozen=True)
class Table:
    """The text of one file and the place of each column in it."""

    path: str | Path
    content: bytes
    header: Row

    @property
    def fields(self) -> list[str]:
        """The name of each column, in the order of the file."""
        return [_column_name(cell) for cell in self.header.cells]

    @property
    def width(self) -> int:
        """The number of cells each row must have."""
        return len(self.header.cells)

    def reader(self) -> Iterator[list[str]]:
        """The rows after the header, blank ones included."""
        reader = csv.reader(_lines(self.content), strict=True)
        while reader.line_num < self.header.line:
            next(reader)
        return reader

    def rows(self) -> Iterator[Row]:
        """The rows after the header that are not blank, each with the line it starts on."""
        return (row for row in _walk(self.path, self.content) if row.line > self.header.line)


def open_table(path: str | Path, *, required: Sequence[str], optional: Sequence[str] = ()) -> Table:
    r"""Read a file and its header; the names of the columns may be in any order and case.

    Raises:
        FileFormatError: if the file cannot be read, or the header is missing or not as asked for.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "clients.csv"
        >>> _ = path.write_text("Size,id\n5,a\n")
        >>> table = open_table(path, required=["id", "size"])
        >>> table.fields, next(table.rows())
        (['size', 'id'], Row(line=2, cells=['5', 'a']))
    """
    content = read_utf8(path, at_most_bytes=LARGEST_CLIENT_LIST)
    header = next(_walk(path, content), None)
    if header is None:
        problem = f"the file is empty; the first line must be the header {','.join(required)}"
        raise FileFormatError(path, problem)
    problem_found = _header_problem(header.cells, list(required), list(optional))
    if problem_found is not None:
        raise FileFormatError(path, problem_found, line=header.line)
    return Table(path, content, header)


def _lines(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")


def _walk(path: str | Path, content: bytes) -> Iterator[Row]:
    """Every row that is not blank, slowly, with the line it starts on."""
    reader = csv.reader(_lines(content), strict=True)
    while True:
        line = reader.line_num + 1  # a quoted cell may hold several lines: the row starts here
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise FileFormatError(path, _csv_problem(error), line=line) from None
        if not is_blank(cells):
            yield Row(line, cells)


def is_blank(cells: Sequence[str]) -> bool:
    """Whether a row holds nothing, not even empty cells.

    Example:
        >>> is_blank([" "]), is_blank(["", ""])
        (True, False)
    """
    return not cells or (len(cells) == 1 and not cells[0].strip())


def _csv_problem(error: csv.Error) -> str:
    words = str(error)
    if "field larger than" in words:
        limit = f"{csv.field_size_limit():,}"
        return (
            f'a cell has more than {limit} characters; the usual cause is a quote (") that is '
            "never closed"
        )
    if "unexpected end of data" in words:
        return 'a quote (") is opened here and never closed'
    if "expected after" in words:
        return 'there is text after a closing quote ("); write "" for a quote inside a cell'
    return f"the row cannot be read as CSV ({words})"


def _column_name(cell: str) -> str:
    return cell.strip().lower()


def _header_problem(cells: list[str], required: list[str], optional: list[str]) -> str | None:
    """What is wrong with the header, in words, or None."""
    known = required + optional
    names = [_column_name(cell) for cell in cells]
    for mark, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(names) == 1 and mark in names[0]:
            return (
                f"the columns are separated by {word}; they must be separated by commas, with a "
                "point as the decimal mark. Export the file as comma-separated CSV."
            )
    if not any(name in known or nearest(name, known) for name in names):
        more = f" and, if wanted, {' and '.join(optional)}" if optional else ""
        return (
            "the header is missing: the first line must name the columns, "
            f"{','.join(required)}{more}."
        )
    missing = [name for name in required if name not in names]
    for given, name in zip(cells, names, strict=True):
        if name not in known:
            hint = nearest(name, [word for word in known if word not in names])
            rename = f", or rename it if it is {' or '.join(missing)}" if missing else ""
            step = f"Did you mean {hint!r}?" if hint else f"Remove it{rename}."
            allowed = "one of " + ", ".join(known)
            return str(InputError("column", given=given, allowed=allowed, next_step=step))
        if names.count(name) > 1:
            return f"the column {name} appears {names.count(name)} times; keep one."
    if missing:
        return f"the column {missing[0]} is missing; needed are {', '.join(required)}."
    return None

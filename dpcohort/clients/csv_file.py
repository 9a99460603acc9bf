# SPDX-License-Identifier: Apache-2.0
"""Clients in a CSV file: ``id,size,epsilon,delta[,batch_size][,public]``, in any order.

A public client has ``true``, ``yes`` or ``1`` in the column ``public`` and nothing in ``epsilon``
and ``delta``. The good file is read fast, in blocks and by column, without keeping line numbers;
only when something is wrong is it walked through again, row by row, to find the true line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, nearest
from dpcohort.atomic_file import atomic_writer
from dpcohort.clients.columns import (
    BATCH_ALLOWED,
    DELTA_ALLOWED,
    EPSILON_ALLOWED,
    MARK_PUBLIC,
    SIZE_ALLOWED,
    ClientColumns,
    Problem,
    first_problem,
)
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_CLIENT_LIST, MOST_CLIENTS
from dpcohort.text_files import read_utf8

__all__ = [
    "OPTIONAL",
    "REQUIRED",
    "Row",
    "Table",
    "is_blank",
    "open_table",
    "read_clients_csv",
    "write_clients_csv",
]


REQUIRED = ("id", "size", "epsilon", "delta")
OPTIONAL = ("batch_size", "public")

_NUMBERS = {
    "size": SIZE_ALLOWED,
    "epsilon": EPSILON_ALLOWED,
    "delta": DELTA_ALLOWED,
    "batch_size": BATCH_ALLOWED,
}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "": False}
_PUBLIC_ALLOWED = "true or false (or yes, no, 1, 0; empty means false)"
# Rows are parsed in blocks small enough that their cells are freed while still in the cache.
_BLOCK = 2048


def read_clients_csv(path: str | Path, *, allow_large_delta: bool = False) -> ClientColumns:
    r"""Read and check all clients of a file.

    Args:
        path: the file; UTF-8 with or without byte order mark, LF or CRLF.
        allow_large_delta: accept delta >= 1/size.

    Returns:
        The checked columns.

    Raises:
        FileFormatError: with file, line, field and value of the first thing that is wrong.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "clients.csv"
        >>> _ = path.write_text("id,size,epsilon,delta,public\na,500,1.5,1e-5,\nb,90,,,true\n")
        >>> columns = read_clients_csv(path)
        >>> columns.ids, columns.public.tolist()
        (('a', 'b'), [False, True])
    """
    table = open_table(path, required=REQUIRED, optional=OPTIONAL)
    try:
        columns, problem = _parse(table)
    except csv.Error:
        for _ in table.rows():  # raises the same error, with its line
            pass
        raise  # pragma: no cover - the walk above reads exactly what the parser read
    early = first_problem(columns, allow_large_delta=allow_large_delta)
    if early is not None and (problem is None or early.row <= problem.row):
        problem = early
    if problem is not None:
        raise _located(table, problem)
    if not columns.ids:
        raise FileFormatError(path, "there is a header but no client below it")
    return columns


def write_clients_csv(
    path: str | Path,
    *,
    ids: Sequence[str],
    sizes: Sequence[int],
    epsilon: Sequence[float],
    delta: Sequence[float],
    batch_sizes: Sequence[int],
    public: Sequence[bool],
) -> None:
    """Write clients so that reading them back gives the same numbers to the last bit.

    The file appears whole or not at all. Columns nobody uses are left out.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "clients.csv"
        >>> write_clients_csv(path, ids=["a"], sizes=[500], epsilon=[1.5], delta=[1e-5],
        ...                   batch_sizes=[0], public=[False])
        >>> print(path.read_text().strip())
        id,size,epsilon,delta
        a,500,1.5,1e-05
    """
    columns: dict[str, Iterable[object]] = {
        "id": ids,
        "size": sizes,
        "epsilon": ["" if p else repr(e) for e, p in zip(epsilon, public, strict=True)],
        "delta": ["" if p else repr(d) for d, p in zip(delta, public, strict=True)],
    }
    if any(batch_sizes):
        columns["batch_size"] = ["" if b == 0 else b for b in batch_sizes]
    if any(public):
        columns["public"] = ["true" if p else "false" for p in public]
    with atomic_writer(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _parse(table: Table) -> tuple[ClientColumns, Problem | None]:
    """All columns up to the first row with a cell that cannot be read, and that row's problem."""
    ids: list[str] = []
    numbers: dict[str, list[FloatArray]] = {field: [] for field in _NUMBERS}
    public: list[BoolArray] = []
    problem: Problem | None = None
    reader = table.reader()
    while problem is None and (rows := list(islice(reader, _BLOCK))):
        if set(map(len, rows)) != {table.width}:
            rows, problem = _even_rows(rows, table.width)
        cells = dict(zip(table.fields, zip(*rows, strict=True), strict=True)) if rows else {}
        block, bad = _parse_block(cells, len(rows))
        problem = bad or problem
        if problem is not None:
            problem = replace(problem, row=problem.row + len(ids))
        ids.extend(block.ids)
        if len(ids) > MOST_CLIENTS:
            raise FileFormatError(table.path, f"more than {MOST_CLIENTS:,} clients; split the file")
        public.append(block.public)
        for field, values in (
            ("size", block.sizes),
            ("epsilon", block.epsilon),
            ("delta", block.delta),
            ("batch_size", block.batch_sizes),
        ):
            numbers[field].append(values)
    joined = {field: np.concatenate([np.empty(0), *parts]) for field, parts in numbers.items()}
    columns = ClientColumns(
        ids=tuple(ids),
        sizes=joined["size"],
        epsilon=joined["epsilon"],
        delta=joined["delta"],
        batch_sizes=joined["batch_size"],
        public=np.concatenate([np.empty(0, dtype=np.bool_), *public]),
    )
    return columns, problem


def _even_rows(rows: list[list[str]], width: int) -> tuple[list[list[str]], Problem | None]:
    """The rows without blank ones, up to the first with a wrong number of cells."""
    kept: list[list[str]] = []
    for cells in rows:
        if is_blank(cells):
            continue
        if len(cells) != width:
            given, allowed = len(cells), f"{width}, as in the header"
            return kept, Problem(row=len(kept), field="cells", given=given, allowed=allowed)
        kept.append(cells)
    return kept, None


def _parse_block(
    cells: dict[str, tuple[str, ...]], count: int
) -> tuple[ClientColumns, Problem | None]:
    """The columns of one block, cut before its first cell that cannot be read."""
    problems: list[Problem] = []
    arrays = {field: np.full(count, np.nan) for field in _NUMBERS}
    public = np.zeros(count, dtype=np.bool_)
    for field, column in cells.items():
        bad_row: int | None = None
        if field in _NUMBERS:
            arrays[field], bad_row = _numbers(column)
        elif field == "public":
            public, bad_row = _truths(column)
        if bad_row is not None:
            given, allowed = column[bad_row], _NUMBERS.get(field, _PUBLIC_ALLOWED)
            problems.append(Problem(row=bad_row, field=field, given=given, allowed=allowed))
    problem = min(problems, key=lambda found: found.row, default=None)
    end = count if problem is None else problem.row
    columns = ClientColumns(
        ids=tuple(cell.strip() for cell in cells.get("id", ())[:end]),
        sizes=arrays["size"][:end],
        epsilon=arrays["epsilon"][:end],
        delta=arrays["delta"][:end],
        batch_sizes=arrays["batch_size"][:end],
        public=public[:end],
    )
    return columns, problem


def _numbers(cells: Sequence[str]) -> tuple[FloatArray, int | None]:
    """The cells as floats, empty ones as NaN, and the first row that is not a number."""
    text = "".join(cells)
    if _is_plain(text):
        try:
            values = np.array([float(cell) if cell else np.nan for cell in cells])
        except ValueError:
            pass
        else:
            # A NaN that was written is not a missing number: the walk below refuses it.
            if np.count_nonzero(np.isnan(values)) == cells.count(""):
                return values, None
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if word := cell.strip():
            try:
                number = float(word) if _is_plain(word) else np.nan
            except ValueError:
                return values, row
            if number != number:
                return values, row
            values[row] = number
    return values, None


def _is_plain(text: str) -> bool:
    """Whether Python's reading of a number is what a person sees: no 1_000, no other digits."""
    return text.isascii() and "_" not in text


def _truths(cells: Sequence[str]) -> tuple[BoolArray, int | None]:
    values = list(map(_TRUTH.get, cells))
    if None in values:
        values = [_TRUTH.get(cell.strip().lower()) for cell in cells]
    bad_row = values.index(None) if None in values else None
    return np.array([value is True for value in values], dtype=np.bool_), bad_row


def _located(table: Table, problem: Problem) -> FileFormatError:
    """The problem with its line in the file and the value as it is written there."""
    other_line: int | None = None
    for number, row in enumerate(table.rows()):
        if number == problem.other_row:
            other_line = row.line
        if number == problem.row:
            break
    if problem.field == "cells":
        words = f"the row has {problem.given} cells; it must have {problem.allowed}."
    else:
        cell = row.cells[table.fields.index(problem.field)]
        step = problem.next_step
        if step == MARK_PUBLIC:
            step = f"{step} (In this file: true in the column public, epsilon and delta empty.)"
        if other_line is not None:
            step = f"It is already used on line {other_line}."
        words = str(replace(problem, given=cell, next_step=step).error(problem.field))
    error = FileFormatError(table.path, words, line=row.line)
    error.field = problem.field
    return error


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

# SPDX-License-Identifier: Apache-2.0
"""A file of clients, ``id,size,epsilon,delta[,batch_size][,public]``, read and checked."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, did_you_mean, nearest
from dpcohort.clients._columns import (
    BATCH_ALLOWED,
    COLUMN_NAMES,
    DELTA_ALLOWED,
    EPSILON_ALLOWED,
    MARK_PUBLIC,
    SIZE_ALLOWED,
    Columns,
    Problem,
    first_problem,
)
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_CLIENT_LIST, MOST_CLIENTS
from dpcohort.text_files import csv_separator, number_in, read_utf8

#: The columns of a file of clients.
REQUIRED = ("id", "size", "epsilon", "delta")
OPTIONAL = ("batch_size", "public")

_CELL_ALLOWED = {
    "size": SIZE_ALLOWED,
    "epsilon": EPSILON_ALLOWED,
    "delta": DELTA_ALLOWED,
    "batch_size": BATCH_ALLOWED,
    "public": "true or false (or yes, no, 1, 0; empty means false)",
}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "": False}
# Rows are parsed in blocks small enough that their cells are freed while still in the cache.
_BLOCK = 2048


def read_clients_csv(
    path: str | Path, *, sizes: Mapping[str, int] | None = None, allow_large_delta: bool = False
) -> Columns:
    r"""Read and check all clients of a file: ``id,size,epsilon,delta[,batch_size][,public]``.

    The columns may be in any order, between commas or semicolons; others, and rows without
    anything in them, are left alone. A public client has ``true``, ``yes`` or ``1`` in the column
    ``public`` and nothing in ``epsilon`` and ``delta``.

    Args:
        path: the file; UTF-8 with or without byte order mark, LF or CRLF.
        sizes: of each client by its id, where the data say so: the file may then leave them out.
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
        >>> columns["ids"], columns["public"].tolist()
        (('a', 'b'), [False, True])
    """
    content = read_utf8(path, at_most_bytes=LARGEST_CLIENT_LIST)
    line, header = next(rows_with_lines(path, content), (0, None))
    if header is None:
        words = f"the file is empty; the first line must be the header {','.join(REQUIRED)}"
        raise FileFormatError(path, words)
    fields = [cell.strip().lower() for cell in header]
    needed = [name for name in REQUIRED if name != "size" or sizes is None]
    if (words_found := _header_problem(header, fields, needed)) is not None:
        raise FileFormatError(path, words_found, line=line)
    # The good file is read fast, in blocks and by column, without keeping line numbers; only when
    # something is wrong is it walked through again, row by row, to find the true line.
    try:
        columns, problem = _parse(path, content, line, fields)
    except csv.Error:
        for _ in rows_with_lines(path, content):  # raises the same error, with its line
            pass
        raise  # pragma: no cover - the walk above reads exactly what the parser read
    if sizes is not None:
        known = np.array([sizes.get(name, np.nan) for name in columns["ids"]], dtype=np.float64)
        unknown = np.flatnonzero(np.isnan(columns["sizes"]) & np.isnan(known))
        if unknown.size:
            name = columns["ids"][unknown[0]]
            raise FileFormatError(path, f"the client {name!r} has no record in the data.")
        columns["sizes"] = np.where(np.isnan(columns["sizes"]), known, columns["sizes"])
    early = first_problem(columns, allow_large_delta=allow_large_delta)
    if early is not None and (problem is None or early.row <= problem.row):
        problem = early
    if problem is not None:
        raise _located(path, content, fields, problem)
    if not columns["ids"]:
        raise FileFormatError(path, "there is a header but no client below it")
    return columns


def _parse(
    path: str | Path, content: bytes, header_line: int, fields: list[str]
) -> tuple[Columns, Problem | None]:
    """All columns up to the first row with a cell that cannot be read, and that row's problem."""
    reader = csv.reader(_text(content), strict=True, delimiter=csv_separator(content))
    while reader.line_num < header_line:
        next(reader)
    ids: list[str] = []
    parts: dict[str, list[NDArray[Any]]] = {field: [] for field in _CELL_ALLOWED}
    found: list[Problem] = []
    while not found and (rows := list(islice(reader, _BLOCK))):
        start = len(ids)
        if set(map(len, rows)) != {len(fields)} or not all(map(any, rows)):
            rows = [cells for cells in rows if not _is_blank(cells)]
            uneven = next((i for i, cells in enumerate(rows) if len(cells) != len(fields)), None)
            if uneven is not None:
                given, allowed = len(rows[uneven]), f"{len(fields)}, as in the header"
                row = start + uneven
                found.append(Problem(row=row, field="cells", given=given, allowed=allowed))
                rows = rows[:uneven]
        for field, cells in zip(fields, zip(*rows, strict=True), strict=False):
            if field == "id":
                ids.extend(map(str.strip, cells))
                continue
            if field not in parts:
                continue
            values, bad = _truths(cells) if field == "public" else _numbers(cells)
            parts[field].append(values)
            if bad is not None:
                given, allowed = cells[bad], _CELL_ALLOWED[field]
                found.append(Problem(row=start + bad, field=field, given=given, allowed=allowed))
        if len(ids) > MOST_CLIENTS:
            raise FileFormatError(path, f"more than {MOST_CLIENTS:,} clients; split the file")
    problem = min(found, key=lambda bad: bad.row, default=None)
    end = len(ids) if problem is None else problem.row
    columns: Columns = {"ids": tuple(ids[:end])}
    for field, name in COLUMN_NAMES.items():
        missing = np.full(end, False if field == "public" else np.nan)
        columns[name] = np.concatenate(parts[field])[:end] if parts[field] else missing
    return columns, problem


def _numbers(cells: Sequence[str]) -> tuple[FloatArray, int | None]:
    """The cells as floats, empty ones as NaN, and the first row that is not a number."""
    text = "".join(cells)
    # Python's reading of a number is what a person sees: no 1_000, no other digits.
    if text.isascii() and "_" not in text:
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
        if cell.strip():
            if (found := number_in(cell)) is None:
                return values, row
            values[row] = found
    return values, None


def _truths(cells: Sequence[str]) -> tuple[BoolArray, int | None]:
    values = list(map(_TRUTH.get, cells))
    if None in values:
        values = [_TRUTH.get(cell.strip().lower()) for cell in cells]
    bad_row = values.index(None) if None in values else None
    return np.array([value is True for value in values], dtype=np.bool_), bad_row


def _located(
    path: str | Path, content: bytes, fields: list[str], problem: Problem
) -> FileFormatError:
    """The problem with its line in the file and the value as it is written there."""
    other_line: int | None = None
    for row, located in enumerate(rows_with_lines(path, content), start=-1):  # -1: the header
        line, cells = located
        if row == problem.other_row:
            other_line = line
        if row == problem.row:
            break
    if problem.field == "cells":
        words = f"the row has {problem.given} cells; it must have {problem.allowed}."
    else:
        step = problem.next_step
        if step == MARK_PUBLIC:
            step = f"{step} (In this file: true in the column public, epsilon and delta empty.)"
        if other_line is not None:
            step = f"It is already used on line {other_line}."
        cell = cells[fields.index(problem.field)] if problem.field in fields else problem.given
        if step is None and isinstance(cell, str) and "," in cell:
            step = "Write it without commas between thousands."
        words = str(problem._replace(given=cell, next_step=step).error(problem.field))
    error = FileFormatError(path, words, line=line)
    error.field = problem.field
    return error


def _text(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")


def rows_with_lines(
    path: str | Path, content: bytes, separators: str = ",;"
) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, the header too, slowly, with the line it starts on."""
    reader = csv.reader(_text(content), strict=True, delimiter=csv_separator(content, separators))
    while True:
        line = reader.line_num + 1  # a quoted cell may hold several lines: the row starts here
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise FileFormatError(path, _csv_problem(error), line=line) from None
        if not _is_blank(cells):
            yield line, cells


def _is_blank(cells: Sequence[str]) -> bool:
    """Whether a row holds nothing, or nothing but empty cells."""
    return not any(cells) or (len(cells) == 1 and not cells[0].strip())


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


def _header_problem(cells: list[str], names: list[str], needed: Sequence[str]) -> str | None:
    """What is wrong with the header, in words, or None.

    A column that nobody asked for is left alone, unless it may be one that is missed.
    """
    known = [*REQUIRED, *OPTIONAL]
    for mark, word in (("\t", "tabs"), ("|", "bars")):
        if len(names) == 1 and mark in names[0]:
            return (
                f"the columns are separated by {word}; they must be separated by commas or "
                "semicolons. Export the file as comma-separated CSV."
            )
    if not any(name in known or nearest(name, known) for name in names):
        return (
            "the header is missing: the first line must name the columns, "
            f"{','.join(needed)} and, if wanted, {' and '.join(OPTIONAL)}."
        )
    missing = [name for name in needed if name not in names]
    for given, name in zip(cells, names, strict=True):
        if name not in known:
            rename = f"Rename it if it is {' or '.join(missing)}." if missing else None
            step = did_you_mean(name, [word for word in known if word not in names]) or rename
            if step is None:
                continue
            allowed = "one of " + ", ".join(known)
            return str(InputError("column", given=given, allowed=allowed, next_step=step))
        if names.count(name) > 1:
            return f"the column {name} appears {names.count(name)} times; keep one."
    if missing:
        return f"the column {missing[0]} is missing; needed are {', '.join(needed)}."
    return None

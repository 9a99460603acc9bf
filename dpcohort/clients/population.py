# SPDX-License-Identifier: Apache-2.0
"""Clients, their privacy budgets, and the population they form.

A client k holds |M_k| records and promises each of them (epsilon_k, delta_k)-differential
privacy. A client whose data needs no privacy is *public*: a kind of its own, so that an infinite
epsilon never appears by accident. A population comes from arrays or from a CSV file; either way
the first client that is wrong is named.
"""

from __future__ import annotations

import csv
import io
import operator
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpcohort._validate import (
    BoolArray,
    FloatArray,
    IntArray,
    did_you_mean,
    float_array,
    nearest,
)
from dpcohort.atomic_file import atomic_writer
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_CLIENT_LIST, MOST_CLIENTS
from dpcohort.text_files import csv_separator, number_in, read_utf8
from dpcohort.training import Training

if TYPE_CHECKING:
    from dpcohort.clients.client import Budget, Client, Public

# The columns of a population, from arrays or from a CSV file, and the first client that is wrong.
#
# A population built in code and one read from a file obey the same rules; only the words around a
# problem differ (the client's id there, the line of the file here). So a check says *which row and
# why*, and the caller says *where that is*.


#: Beyond this e^epsilon is not a number any more, and the promise means nothing long before.
MAX_EPSILON = 700.0
#: Above any real data set, below the whole numbers a float64 can hold exactly.
MAX_SIZE = 10**15

EPSILON_ALLOWED = "a finite number above 0 and at most 700"
DELTA_ALLOWED = "a number above 0 and below 1"
DELTA_BELOW = "below 1/size = 1/{size} = {share:.3g}"
SIZE_ALLOWED = "a whole number from 1 to 10^15"
BATCH_ALLOWED = "a whole number from 1 to 10^15, or empty"
LARGE_DELTA = (
    "A delta of 1/size or more lets a mechanism that publishes a whole record of this client count "
    "as private. Lower delta, or accept it with allow_large_delta."
)
MARK_PUBLIC = "For data that needs no privacy mark the client public; then it has no epsilon."


# The columns of a population, by the names of its attributes, before they are checked; numbers as
# float64, NaN = not given.
_Columns = dict[str, Any]
#: What a file calls each column beside the ids, and the attribute of a population that it is.
COLUMN_NAMES = {
    **{"size": "sizes", "epsilon": "epsilon", "delta": "delta"},
    **{"batch_size": "batch_sizes", "public": "public"},
}
_COLUMNS = ("ids", *COLUMN_NAMES.values())


class Problem(NamedTuple):
    """One value that cannot be used: which row and field, what is allowed, what to do."""

    row: int
    field: str
    given: object
    allowed: str
    next_step: str | None = None
    other_row: int | None = None

    def error(self, label: str) -> InputError:
        """The problem as an error, the field called by ``label``."""
        return InputError(label, given=self.given, allowed=self.allowed, next_step=self.next_step)


def columns_of(
    *,
    ids: Iterable[str] | None,
    sizes: object,
    epsilon: object,
    delta: object,
    batch_sizes: object = None,
    public: object = None,
) -> _Columns:
    """Columns from whatever holds numbers; lengths and kinds are checked, values not yet.

    Args:
        ids: names, or None to number the clients.
        sizes: one number for each client.
        epsilon: one for each client, or one for all that are not public.
        delta: as epsilon.
        batch_sizes: one for each client, 0 or None for none.
        public: one truth value for each client, or None for no public client.

    Example:
        >>> columns = columns_of(ids=None, sizes=[5, 7], epsilon=1.0, delta=[1e-5, None])
        >>> columns["ids"], columns["delta"]
        (('client-0', 'client-1'), array([1.e-05,    nan]))
    """
    rows = as_floats("sizes", sizes)
    count = len(rows)
    if count == 0:
        raise InputError.because("a population needs at least one client; none was given.")
    is_public = _as_truths(public, count)
    batches = as_floats("batch_sizes", np.zeros(count) if batch_sizes is None else batch_sizes)
    batches[batches == 0] = np.nan
    columns: _Columns = {
        "ids": numbered("client", count) if ids is None else as_ids(ids),
        "sizes": rows,
        "epsilon": _spread("epsilon", epsilon, is_public),
        "delta": _spread("delta", delta, is_public),
        "batch_sizes": batches,
        "public": is_public,
    }
    for field, column in columns.items():
        if (length := len(column)) != count:
            allowed = f"one for each of the {count} clients"
            raise InputError(field, given=f"{length} values", allowed=allowed)
    return columns


def as_floats(field: str, given: object) -> FloatArray:
    """A fresh float64 column; only what is a number already is taken for one.

    Example:
        >>> as_floats("sizes", [3, None])
        array([ 3., nan])
    """
    try:
        array = np.asarray(given)
    except ValueError:  # lists of unequal length inside
        raise InputError(field, given=given, allowed="a flat list of numbers") from None
    if array.ndim != 1:
        raise InputError(field, given=given, allowed="a flat list of numbers")
    if array.dtype.kind == "O":  # None, or whole numbers beyond 64 bits
        return np.array([_as_float(field, value) for value in array], dtype=np.float64)
    if array.size and array.dtype.kind not in "iuf":
        raise InputError(field, given=given, allowed="numbers only")
    return array.astype(np.float64, copy=True)


def _as_float(field: str, value: object) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(field, given=value, allowed="numbers only")
    try:
        return float(value)
    except OverflowError:  # no column allows infinity, so it is refused where columns are checked
        return float("inf") if value > 0 else float("-inf")


def _spread(field: str, given: object, public: BoolArray) -> FloatArray:
    """A column, or one number on all rows that are not public."""
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given.item()
    if isinstance(given, int | float | np.integer | np.floating):
        return np.where(public, np.nan, _as_float(field, given))
    return as_floats(field, given)


def _as_truths(given: object, count: int) -> BoolArray:
    if given is None:
        return np.zeros(count, dtype=np.bool_)
    try:
        array = np.array(given)
    except ValueError:
        array = np.empty(0)
    if array.shape != (count,) or array.dtype != np.bool_:
        allowed = f"True or False for each of the {count} clients"
        raise InputError("public", given=given, allowed=allowed)
    return array


def first_problem(columns: _Columns, *, allow_large_delta: bool = False) -> Problem | None:
    """The problem of the first client that has one, or None.

    Args:
        columns: all columns, of equal length.
        allow_large_delta: accept delta >= 1/size.

    Example:
        >>> columns = columns_of(ids=["a", "b"], sizes=[100, 0], epsilon=1.0, delta=1e-5)
        >>> problem = first_problem(columns)
        >>> problem.row, problem.field, problem.given
        (1, 'size', 0)
    """
    found = [*bad_ids(columns["ids"]), *_number_problems(columns, allow_large_delta)]
    return min(found, key=lambda problem: problem.row, default=None)


def _number_problems(columns: _Columns, allow_large_delta: bool) -> Iterator[Problem]:
    sizes, epsilon, delta, batches, public = (columns[name] for name in _COLUMNS[1:])
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf are never inside: meant
        whole = (sizes >= 1) & (sizes <= MAX_SIZE) & (np.floor(sizes) == sizes)
        good_epsilon = public | ((epsilon > 0) & (epsilon <= MAX_EPSILON))
        good_delta = public | ((delta > 0) & (delta < 1))
        good_batch = np.isnan(batches) | (
            (batches >= 1) & (batches <= MAX_SIZE) & (np.floor(batches) == batches)
        )
        large = ~public & good_delta & whole & (delta * sizes >= 1)
        oversized = whole & good_batch & (batches > sizes)
    checks = [
        (~whole, "size", sizes, SIZE_ALLOWED),
        (~good_epsilon, "epsilon", epsilon, EPSILON_ALLOWED),
        (~good_delta, "delta", delta, DELTA_ALLOWED),
        (~good_batch, "batch_size", batches, BATCH_ALLOWED),
        (oversized, "batch_size", batches, "at most the client's size, {size}"),
        (public & ~np.isnan(epsilon), "epsilon", epsilon, "left out: it is public"),
        (public & ~np.isnan(delta), "delta", delta, "left out: it is public"),
    ]
    if not allow_large_delta:
        checks.append((large, "delta", delta, DELTA_BELOW))
    for bad, field, values, allowed in checks:
        if bad.any():
            row = int(bad.argmax())
            value, size = float(values[row]), int(sizes[row]) if whole[row] else 1
            steps = {EPSILON_ALLOWED: epsilon_step(value), DELTA_BELOW: LARGE_DELTA}
            counts = field in ("size", "batch_size") and value.is_integer() and abs(value) <= 2**53
            yield Problem(
                row=row,
                field=field,
                given=int(value) if counts else value,
                allowed=allowed.format(size=size, share=1 / size),
                next_step=steps.get(allowed),
            )


def epsilon_step(given: float) -> str | None:
    """The next step after a bad epsilon: only a huge or missing one may mean public data."""
    return MARK_PUBLIC if given > MAX_EPSILON or given != given else None


MAX_ID_LENGTH = 1000
ID_ALLOWED = f"text of 1 to {MAX_ID_LENGTH} characters without control characters"

# Above this many ids only those that begin like the wanted one are compared with it.
_MANY_IDS = 5_000
# Line ends and tabs inside an id are harmless; other control characters, marks that turn the
# direction of text, and lone surrogates can garble a terminal, hide what an id is, or not encode.
_BAD_CHARACTERS = (
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Names(Sequence[str]):
    """The names of clients, each made when it is asked for: a million take little memory.

    They are equal to a tuple of the same names, and print and hash as their tuple.

    Args:
        count: how many there are.
        name: the name of a position.

    Example:
        >>> names = _kept_names(["north", "south"])
        >>> names, names[1], names == ("north", "south")
        (('north', 'south'), 'south', True)
    """

    def __init__(self, count: int, name: Callable[[int], str]) -> None:
        self._count, self._name = count, name

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: Any) -> Any:
        rows = range(self._count)[key]
        return tuple(map(self._name, rows)) if isinstance(rows, range) else self._name(rows)

    def __iter__(self) -> Iterator[str]:
        return map(self._name, range(self._count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Names | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def _kept_names(names: Iterable[str]) -> Names:
    """Names kept as one text, in a quarter of the memory of a tuple.

    Example:
        >>> _kept_names(["a", "bc"])[1]
        'bc'
    """
    parts, ends, rest = [""], array("q", [0]), iter(names)
    while block := list(islice(rest, _BLOCK)):
        parts.append("".join(block))
        ends.extend(accumulate(map(len, block), initial=ends.pop()))
    text = "".join(parts)
    return Names(
        len(ends) - 1, partial(_part, text, array("i", ends) if len(text) < 2**31 else ends)
    )


def _part(text: str, ends: array[int], row: int) -> str:
    return text[ends[row] : ends[row + 1]]


def _number(word: str, digits: int, row: int) -> str:
    return f"{word}-{row:0{digits}d}"


def shared(column: NDArray[Any]) -> NDArray[Any]:
    """A column that is closed for writing; one number where it is the same for everybody.

    Example:
        >>> shared(np.full(1000, 8)).strides, shared(np.arange(1000)).strides
        ((0,), (8,))
    """
    if column.size and (column == column[0]).all():
        return np.broadcast_to(column[0], column.shape)
    column.setflags(write=False)
    return column


def numbered(word: str, count: int) -> Names:
    """Names that sort in the order of their numbers.

    Example:
        >>> numbered("client", 11)[9:]
        ('client-09', 'client-10')
    """
    digits = len(str(max(count - 1, 0)))
    return Names(count, partial(_number, word, digits))


def as_ids(given: Iterable[str]) -> Sequence[str]:
    """The ids without the space around them.

    Example:
        >>> as_ids(["north ", "south"])
        ('north', 'south')
    """
    if isinstance(given, Names):  # of a population, so they are in order
        return given
    try:
        ids = tuple(given)
    except TypeError:
        raise InputError("ids", given=given, allowed="one text for each client") from None
    try:
        return tuple(map(str.strip, ids))
    except TypeError:
        wrong = next(name for name in ids if not isinstance(name, str))
        raise InputError("ids", given=wrong, allowed="text only") from None


def bad_ids(ids: Sequence[str]) -> Iterator[Problem]:
    """The first id that is empty, has odd characters, is too long, or is used twice; each kind.

    Example:
        >>> [(bad.row, bad.other_row) for bad in bad_ids(("a", "b", "a"))]
        [(2, 0)]
    """
    if isinstance(ids, Names):
        return
    wrong: list[int] = []
    if not all(ids):
        wrong.append(ids.index(""))
    # One look at all ids first: the loops below run only when there is something to find.
    letters = "".join(ids)
    if not letters.isprintable() and re.search(_BAD_CHARACTERS, letters):
        wrong.append(next(i for i, name in enumerate(ids) if re.search(_BAD_CHARACTERS, name)))
    if max(map(len, ids), default=0) > MAX_ID_LENGTH:
        wrong.append(next(i for i, name in enumerate(ids) if len(name) > MAX_ID_LENGTH))
    for row in wrong:
        yield Problem(row=row, field="id", given=ids[row], allowed=ID_ALLOWED)
    # Hashes that differ are of ids that differ, and take less memory than a set of all ids.
    hashes = np.sort(np.fromiter(map(hash, ids), np.int64, len(ids)))
    if (hashes[1:] == hashes[:-1]).any() and len(set(ids)) != len(ids):
        seen: dict[str, int] = {}
        row, name = next((i, name) for i, name in enumerate(ids) if seen.setdefault(name, i) != i)
        allowed = "different for every client"
        yield Problem(row=row, field="id", given=name, allowed=allowed, other_row=seen[name])


def nearest_id(word: str, ids: Sequence[str]) -> str | None:
    """The id most like a mistyped one, or None.

    Example:
        >>> nearest_id("nroth", ("north", "south"))
        'north'
    """
    candidates: Iterable[str] = ids
    if len(ids) > _MANY_IDS:
        # Comparing with a million ids takes a minute; those that begin alike are enough.
        prefix = word.lower()[:40]
        while prefix and not (alike := [i for i in ids if i.lower().startswith(prefix)]):
            prefix = prefix[:-1]
        candidates = (alike if prefix else ids)[:_MANY_IDS]
    by_lower = {name.lower(): name for name in candidates}
    hint = nearest(word, by_lower)
    return by_lower[hint] if hint is not None else None


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
) -> _Columns:
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
) -> tuple[_Columns, Problem | None]:
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
    columns: _Columns = {"ids": tuple(ids[:end])}
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


#: Share of its records a client uses in a step when nobody named a batch, as in the paper's figure
#: of selection probabilities.
DEFAULT_SAMPLING_RATE = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """All clients, as columns; the arrays cannot be written to.

    Attributes:
        ids: unique names.
        sizes: numbers of records |M_k|, int64.
        epsilon: epsilon_k, float64; NaN for public clients.
        delta: delta_k, float64; NaN for public clients.
        batch_sizes: the clients' own batches B_k, int64; 0 where a client names none.
        public: which clients need no privacy.
        allow_large_delta: whether delta_k >= 1/|M_k| is accepted.

    Example:
        >>> population = Population.from_arrays(sizes=[600, 200], epsilon=[1.0, 4.0], delta=1e-5)
        >>> population.unbiased
        array([0.75, 0.25])
        >>> population["client-1"].budget
        Budget(epsilon=4.0, delta=1e-05)
    """

    ids: Sequence[str]
    sizes: IntArray
    epsilon: FloatArray
    delta: FloatArray
    batch_sizes: IntArray
    public: BoolArray
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        columns = columns_of(**{field: getattr(self, field) for field in _COLUMNS})
        problem = first_problem(columns, allow_large_delta=self.allow_large_delta)
        if problem is not None:
            where = "" if problem.field == "id" else f" of client {columns['ids'][problem.row]!r}"
            raise problem.error(f"{problem.field}{where}")
        self._settle(columns)

    @classmethod
    def from_arrays(
        cls,
        *,
        sizes: ArrayLike,
        epsilon: ArrayLike,
        delta: ArrayLike,
        ids: Iterable[str] | None = None,
        batch_sizes: ArrayLike | None = None,
        public: ArrayLike | None = None,
        allow_large_delta: bool = False,
    ) -> Population:
        """A population from columns; one number stands for all clients that are not public.

        Example:
            >>> len(Population.from_arrays(sizes=[60, 20, 20], epsilon=1.0, delta=1e-5))
            3
        """
        columns = (ids, sizes, epsilon, delta, batch_sizes, public)
        given: Any = dict(zip(_COLUMNS, columns, strict=True))
        return cls(**given, allow_large_delta=allow_large_delta)

    @classmethod
    def from_clients(
        cls, clients: Iterable[Client], *, allow_large_delta: bool = False
    ) -> Population:
        """A population from single clients.

        Example:
            >>> from dpcohort.clients import PUBLIC, Budget, Client
            >>> clients = [Client("a", 90, Budget(1.0, 1e-5)), Client("b", 10, PUBLIC)]
            >>> Population.from_clients(clients).public
            array([False,  True])
        """
        from dpcohort.clients.client import Budget, Client

        rows = list(clients)
        for row in rows:
            if not isinstance(row, Client):
                raise InputError("clients", given=row, allowed="Client objects only")
        budgets = [c.budget if isinstance(c.budget, Budget) else None for c in rows]
        return cls.from_arrays(
            ids=[client.id for client in rows],
            sizes=[client.size for client in rows],
            epsilon=[np.nan if b is None else b.epsilon for b in budgets],
            delta=[np.nan if b is None else b.delta for b in budgets],
            batch_sizes=[client.batch_size or 0 for client in rows],
            public=[client.is_public for client in rows],
            allow_large_delta=allow_large_delta,
        )

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        sizes: Mapping[str, int] | None = None,
        allow_large_delta: bool = False,
    ) -> Population:
        """A population from a file ``id,size,epsilon,delta[,batch_size][,public]``.

        Args:
            path: the file; see ``dpcohort.clients.population.read_clients_csv``.
            sizes: of each client by its id, for a file that leaves them out.
            allow_large_delta: accept delta_k >= 1/|M_k|; ``large_delta`` then counts them.

        Raises:
            FileFormatError: with file, line, field and value.
        """
        population = cls.__new__(cls)  # checked by the reader: no second look at a million rows
        object.__setattr__(population, "allow_large_delta", allow_large_delta)
        columns = read_clients_csv(path, sizes=sizes, allow_large_delta=allow_large_delta)
        population._settle(columns)
        return population

    def to_csv(self, path: str | Path) -> None:
        """Write the clients to a file that ``from_csv`` reads back to the last bit; atomic.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder, "clients.csv")
            ...     Population.from_arrays(sizes=[500], epsilon=1.5, delta=1e-5).to_csv(path)
            ...     print(path.read_text())
            id,size,epsilon,delta
            client-0,500,1.5,1e-05
            <BLANKLINE>
        """
        public = self.public.tolist()

        def promised(values: FloatArray) -> list[str]:
            rows = zip(values.tolist(), public, strict=True)
            return ["" if is_public else repr(value) for value, is_public in rows]

        columns: dict[str, Iterable[object]] = {
            "id": self.ids,
            "size": self.sizes.tolist(),
            "epsilon": promised(self.epsilon),
            "delta": promised(self.delta),
        }
        if self.batch_sizes.any():
            columns["batch_size"] = [batch or "" for batch in self.batch_sizes.tolist()]
        if any(public):
            columns["public"] = ["true" if is_public else "false" for is_public in public]
        with atomic_writer(path) as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Client]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: int | str) -> Client:
        from dpcohort.clients.client import PUBLIC, Budget, Client

        row = self._row(key)
        budget: Budget | Public = PUBLIC
        if not self.public[row]:
            budget = Budget(float(self.epsilon[row]), float(self.delta[row]))
        batch_size = int(self.batch_sizes[row]) or None
        return Client(self.ids[row], int(self.sizes[row]), budget, batch_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Population):
            return NotImplemented
        return self.ids == other.ids and all(
            np.array_equal(getattr(self, field), getattr(other, field), equal_nan=True)
            for field in _COLUMNS[1:]
        )

    def __repr__(self) -> str:
        public = int(self.public.sum())
        return f"Population({len(self)} clients, {self.total_size} records, {public} public)"

    def index_of(self, client_id: str) -> int:
        """The position of a client.

        Raises:
            InputError: if there is no such client; the nearest id is suggested.

        Example:
            >>> population = Population.from_arrays(
            ...     ids=["north", "south"], sizes=[60, 40], epsilon=1.0, delta=1e-5)
            >>> population.index_of("south")
            1
        """
        try:
            return self._positions[client_id]
        except (KeyError, TypeError):
            hint = nearest_id(str(client_id), self.ids)
            raise InputError(
                "client",
                given=client_id,
                allowed=f"the id of one of the {len(self)} clients",
                next_step=None if hint is None else f"Did you mean {hint!r}?",
            ) from None

    @property
    def total_size(self) -> int:
        """Records of all clients together, |S|."""
        if len(self) * int(self.sizes.max()) < 2**63:
            return int(self.sizes.sum())
        return sum(self.sizes.tolist())

    @property
    def unbiased(self) -> FloatArray:
        """Probabilities proportional to sizes, p^u_k = |M_k| / |S|."""
        return np.asarray(self.sizes / self.total_size, dtype=np.float64)

    @property
    def large_delta(self) -> int:
        """How many clients have delta_k >= 1/|M_k|; only above 0 with ``allow_large_delta``."""
        with np.errstate(invalid="ignore"):  # NaN on public rows: not large
            return int(np.count_nonzero(self.delta * self.sizes >= 1))

    def with_budget(self, client_id: str, budget: Budget | Public) -> Population:
        """The same population with another budget for one client, to ask what would be if.

        Example:
            >>> from dpcohort.clients import Budget
            >>> population = Population.from_arrays(sizes=[60, 40], epsilon=1.0, delta=1e-5)
            >>> population.with_budget("client-0", Budget(2.0, 1e-5)).epsilon
            array([2., 1.])
        """
        from dpcohort.clients.client import PUBLIC, Budget, Public

        row = self.index_of(client_id)
        if not isinstance(budget, Budget | Public):
            raise InputError("budget", given=budget, allowed="a Budget, or PUBLIC")
        epsilon, delta, public = self.epsilon.copy(), self.delta.copy(), self.public.copy()
        epsilon[row] = budget.epsilon if isinstance(budget, Budget) else np.nan
        delta[row] = budget.delta if isinstance(budget, Budget) else np.nan
        public[row] = budget is PUBLIC
        return replace(self, epsilon=epsilon, delta=delta, public=public)

    def with_scaled_budgets(self, epsilon: ArrayLike, delta: ArrayLike = 1.0) -> Population:
        """The same clients with every epsilon, and every delta, times a factor, or one for each.

        Example:
            >>> clients = Population.from_arrays(sizes=[90], epsilon=[2.0], delta=1e-5)
            >>> clients.with_scaled_budgets(3.0).epsilon.tolist()
            [6.0]
        """
        return replace(
            self,
            epsilon=float_array("factor of epsilon", epsilon, above=0) * self.epsilon,
            delta=float_array("factor of delta", delta, above=0, at_most=1) * self.delta,
        )

    def with_sizes(self, sizes: ArrayLike) -> Population:
        """The same clients with other numbers of records; no batch is larger than its client.

        Example:
            >>> clients = Population.from_arrays(sizes=[90], epsilon=[2.0], delta=1e-5)
            >>> clients.with_sizes([81]).sizes.tolist()
            [81]
        """
        own: IntArray = np.asarray(sizes)
        return replace(self, sizes=own, batch_sizes=np.minimum(self.batch_sizes, own))

    def batches(self, training: Training) -> IntArray:
        """The expected batch of each client, B_k.

        A client's own batch comes first, then ``training.batch_size`` or
        ``training.sampling_rate``. Where none of them is given, a client uses 10 % of its records
        (rounded, at least 1), the rate of the paper's figure of selection probabilities.

        Raises:
            InputError: if a batch is larger than its client, unless ``training.oversized_batch``
                is ``"whole"``; such a client then uses all its records in each step.

        Example:
            >>> population = Population.from_arrays(sizes=[600, 204], epsilon=1.0, delta=1e-5)
            >>> population.batches(Training(batch_size=128))
            array([128, 128])
            >>> population.batches(Training())
            array([60, 20])
        """
        if training.batch_size is not None:
            # No size reaches 2^62: a batch beyond it is as oversized as that, and fits an int64.
            common: int | IntArray = min(training.batch_size, 2**62)
        else:
            rate = training.sampling_rate or DEFAULT_SAMPLING_RATE
            common = np.maximum(np.rint(rate * self.sizes), 1).astype(np.int64)
        batches: IntArray = np.where(self.batch_sizes > 0, self.batch_sizes, common)
        oversized = batches > self.sizes
        if training.oversized_batch == "error" and oversized.any():
            row, others = int(oversized.argmax()), int(np.count_nonzero(oversized)) - 1
            more = f" ({others} other client{'s' * (others > 1)} too)" if others else ""
            raise InputError(
                "batch_size",
                given=int(batches[row]),
                allowed=f"at most the size of the client, but {self.ids[row]!r} has "
                f"{self.sizes[row]} records{more}",
                next_step="Lower the batch size, give such clients their own in a batch_size "
                'column, or set training.oversized_batch = "whole" to let them use all their '
                "records in each step.",
            )
        return np.minimum(batches, self.sizes, out=batches)

    def _settle(self, columns: _Columns) -> None:
        """Take the columns over, in their final types and closed for writing."""
        for field in ("sizes", "batch_sizes"):
            columns[field] = np.nan_to_num(columns[field], nan=0.0).astype(np.int64)
        for field, column in columns.items():
            if field != "ids":
                column = shared(column)
            elif not isinstance(column, Names):
                column = _kept_names(column)
            object.__setattr__(self, field, column)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def _row(self, key: int | str) -> int:
        if isinstance(key, str):
            return self.index_of(key)
        try:
            return range(len(self))[operator.index(key)]
        except (TypeError, IndexError):
            allowed = f"an id, or a position from 0 to {len(self) - 1}"
            raise InputError("client", given=key, allowed=allowed) from None

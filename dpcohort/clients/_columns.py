# SPDX-License-Identifier: Apache-2.0
"""The columns of a population, from arrays or from a CSV file, and the first client that is wrong.

A population built in code and one read from a file obey the same rules; only the words around a
problem differ (the client's id there, the line of the file here). So a check says *which row and
why*, and the caller says *where that is*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.clients._ids import ID_ALLOWED, MAX_ID_LENGTH, Names, as_ids, numbered
from dpcohort.errors import InputError

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
Columns = dict[str, Any]
#: What a file calls each column beside the ids, and the attribute of a population that it is.
COLUMN_NAMES = {
    **{"size": "sizes", "epsilon": "epsilon", "delta": "delta"},
    **{"batch_size": "batch_sizes", "public": "public"},
}
COLUMNS = ("ids", *COLUMN_NAMES.values())


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
) -> Columns:
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
    rows = _as_floats("sizes", sizes)
    count = len(rows)
    if count == 0:
        raise InputError.because("a population needs at least one client; none was given.")
    is_public = _as_truths(public, count)
    batches = _as_floats("batch_sizes", np.zeros(count) if batch_sizes is None else batch_sizes)
    batches[batches == 0] = np.nan
    columns: Columns = {
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


def _as_floats(field: str, given: object) -> FloatArray:
    """A fresh float64 column; only what is a number already is taken for one.

    Example:
        >>> _as_floats("sizes", [3, None])
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
    return _as_floats(field, given)


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


def first_problem(columns: Columns, *, allow_large_delta: bool = False) -> Problem | None:
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
    found = [*_bad_ids(columns["ids"]), *_number_problems(columns, allow_large_delta)]
    return min(found, key=lambda problem: problem.row, default=None)


def _number_problems(columns: Columns, allow_large_delta: bool) -> Iterator[Problem]:
    sizes, epsilon, delta, batches, public = (columns[name] for name in COLUMNS[1:])
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


# Line ends and tabs inside an id are harmless; other control characters, marks that turn the
# direction of text, and lone surrogates can garble a terminal, hide what an id is, or not encode.
_BAD_CHARACTERS = (
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def _bad_ids(ids: Sequence[str]) -> Iterator[Problem]:
    """The first id that is empty, has odd characters, is too long, or is used twice; each kind.

    Example:
        >>> [(bad.row, bad.other_row) for bad in _bad_ids(("a", "b", "a"))]
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

# SPDX-License-Identifier: Apache-2.0
"""What is allowed in each column of a population, and the first client that breaks it.

A population built in code and one read from a file obey the same rules; only the words around a
problem differ (the client's id there, the line of the file here). So a check says *which row and
why*, and the caller says *where that is*.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, nearest
from dpcohort.errors import InputError

__all__ = [
    "MAX_EPSILON",
    "MAX_ID_LENGTH",
    "MAX_SIZE",
    "BadId",
    "ClientColumns",
    "Problem",
    "as_floats",
    "as_ids",
    "bad_ids",
    "columns_of",
    "epsilon_step",
    "first_problem",
    "nearest_id",
    "numbered",
]


#: Beyond this e^epsilon is not a number any more, and the promise means nothing long before.
MAX_EPSILON = 700.0
#: Above any real data set, below the whole numbers a float64 can hold exactly.
MAX_SIZE = 10**15

EPSILON_ALLOWED = "a finite number above 0 and at most 700"
DELTA_ALLOWED = "a number above 0 and below 1"
SIZE_ALLOWED = "a whole number from 1 to 10^15"
BATCH_ALLOWED = "a whole number from 1 to 10^15, or empty"
MARK_PUBLIC = "For data that needs no privacy mark the client public; then it has no epsilon."


@dataclass(frozen=True, kw_only=True)
class ClientColumns:
    """The columns of a population before they are checked; numbers as float64, NaN = not given."""

    ids: tuple[str, ...]
    sizes: FloatArray
    epsilon: FloatArray
    delta: FloatArray
    batch_sizes: FloatArray
    public: BoolArray


@dataclass(frozen=True, kw_only=True)
class Problem:
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
) -> ClientColumns:
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
        >>> columns.ids, columns.delta
        (('client-0', 'client-1'), array([1.e-05,    nan]))
    """
    rows = as_floats("sizes", sizes)
    count = len(rows)
    if count == 0:
        raise InputError.because("a population needs at least one client; none was given.")
    is_public = _as_truths(public, count)
    batches = as_floats("batch_sizes", np.zeros(count) if batch_sizes is None else batch_sizes)
    batches[batches == 0] = np.nan
    columns = ClientColumns(
        ids=numbered("client", count) if ids is None else as_ids(ids),
        sizes=rows,
        epsilon=_spread("epsilon", epsilon, is_public),
        delta=_spread("delta", delta, is_public),
        batch_sizes=batches,
        public=is_public,
    )
    for field in ("ids", "epsilon", "delta", "batch_sizes"):
        if (length := len(getattr(columns, field))) != count:
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


def first_problem(columns: ClientColumns, *, allow_large_delta: bool = False) -> Problem | None:
    """The problem of the first client that has one, or None.

    Args:
        columns: all columns, of equal length.
        allow_large_delta: accept delta >= 1/size.

    Example:
        >>> columns = ClientColumns(
        ...     ids=("a", "b"), sizes=np.array([100.0, 0.0]), epsilon=np.array([1.0, 1.0]),
        ...     delta=np.array([1e-5, 1e-5]), batch_sizes=np.array([np.nan, np.nan]),
        ...     public=np.array([False, False]))
        >>> problem = first_problem(columns)
        >>> problem.row, problem.field, problem.given
        (1, 'size', 0)
    """
    wrong_ids = (Problem(field="id", **bad._asdict()) for bad in bad_ids(columns.ids))
    found = [*wrong_ids, *_number_problems(columns, allow_large_delta)]
    return min(found, key=lambda problem: problem.row, default=None)


def _number_problems(columns: ClientColumns, allow_large_delta: bool) -> Iterator[Problem]:
    sizes, epsilon, delta = columns.sizes, columns.epsilon, columns.delta
    batches, public = columns.batch_sizes, columns.public
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf are never inside: meant
        whole = (sizes >= 1) & (sizes <= MAX_SIZE) & (np.floor(sizes) == sizes)
        good_epsilon = public | ((epsilon > 0) & (epsilon <= MAX_EPSILON))
        good_delta = public | ((delta > 0) & (delta < 1))
        good_batch = np.isnan(batches) | (
            (batches >= 1) & (batches <= MAX_SIZE) & (np.floor(batches) == batches)
        )
        large = ~public & good_delta & whole & (delta * sizes >= 1)
        oversized = whole & good_batch & (batches > sizes)
    yield from _first(~whole, "size", sizes, SIZE_ALLOWED)
    yield from _first(~good_epsilon, "epsilon", epsilon, EPSILON_ALLOWED, epsilon_step)
    yield from _first(~good_delta, "delta", delta, DELTA_ALLOWED)
    yield from _first(~good_batch, "batch_size", batches, BATCH_ALLOWED)
    if oversized.any():
        row = int(oversized.argmax())
        allowed = f"at most the client's size, {int(sizes[row])}"
        yield from _first(oversized, "batch_size", batches, allowed)
    for field, values in (("epsilon", epsilon), ("delta", delta)):
        yield from _first(public & ~np.isnan(values), field, values, "left out: it is public")
    if not allow_large_delta and large.any():
        row = int(large.argmax())
        size = int(sizes[row])
        yield Problem(
            row=row,
            field="delta",
            given=float(delta[row]),
            allowed=f"below 1/size = 1/{size} = {1 / size:.3g}",
            next_step="A delta of 1/size or more lets a mechanism that publishes a whole record "
            "of this client count as private. Lower delta, or accept it with "
            "allow_large_delta.",
        )


def _first(
    bad: BoolArray,
    field: str,
    values: FloatArray,
    allowed: str,
    next_step: Callable[[float], str | None] | None = None,
) -> Iterator[Problem]:
    if bad.any():
        row = int(bad.argmax())
        value = float(values[row])
        counts = field in ("size", "batch_size") and value.is_integer() and abs(value) <= 2**53
        yield Problem(
            row=row,
            field=field,
            given=int(value) if counts else value,
            allowed=allowed,
            next_step=next_step(value) if next_step is not None else None,
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
_BAD_CHARACTERS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class BadId(NamedTuple):
    """An id that cannot be used: its row, itself, what is allowed, the row that has it already."""

    row: int
    given: str
    allowed: str
    other_row: int | None = None


def numbered(word: str, count: int) -> tuple[str, ...]:
    """Names that sort in the order of their numbers.

    Example:
        >>> numbered("client", 11)[9:]
        ('client-09', 'client-10')
    """
    digits = len(str(max(count - 1, 0)))
    return tuple(f"{word}-{row:0{digits}d}" for row in range(count))


def as_ids(given: Iterable[str]) -> tuple[str, ...]:
    """The ids without the space around them.

    Example:
        >>> as_ids(["north ", "south"])
        ('north', 'south')
    """
    try:
        ids = tuple(given)
    except TypeError:
        raise InputError("ids", given=given, allowed="one text for each client") from None
    try:
        return tuple(map(str.strip, ids))
    except TypeError:
        wrong = next(name for name in ids if not isinstance(name, str))
        raise InputError("ids", given=wrong, allowed="text only") from None


def bad_ids(ids: tuple[str, ...]) -> Iterator[BadId]:
    """The first id that is empty, has odd characters, is too long, or is used twice; each kind.

    Example:
        >>> [(bad.row, bad.other_row) for bad in bad_ids(("a", "b", "a"))]
        [(2, 0)]
    """
    if not all(ids):
        yield BadId(ids.index(""), "", ID_ALLOWED)
    # One search over all ids first: the loops below run only when there is something to find.
    if _BAD_CHARACTERS.search("\n".join(ids)):
        row = next(i for i, name in enumerate(ids) if _BAD_CHARACTERS.search(name))
        yield BadId(row, ids[row], ID_ALLOWED)
    if max(map(len, ids), default=0) > MAX_ID_LENGTH:
        row = next(i for i, name in enumerate(ids) if len(name) > MAX_ID_LENGTH)
        yield BadId(row, ids[row], ID_ALLOWED)
    if len(set(ids)) != len(ids):
        seen: dict[str, int] = {}
        for row, name in enumerate(ids):
            if (first := seen.setdefault(name, row)) != row:
                yield BadId(row, name, "different for every client", first)
                break


def nearest_id(word: str, ids: tuple[str, ...]) -> str | None:
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

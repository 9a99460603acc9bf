# SPDX-License-Identifier: Apache-2.0
"""Ids of clients: kept in little memory, compared, and the nearest to a mistyped one."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Any

from dpcohort._validate import nearest
from dpcohort.errors import InputError

MAX_ID_LENGTH = 1000
ID_ALLOWED = f"text of 1 to {MAX_ID_LENGTH} characters without control characters"

# Above this many ids only those that begin like the wanted one are compared with it.
_MANY_IDS = 5_000
#: Names joined at a time.
_BLOCK = 2048


class Names(Sequence[str]):
    """The names of clients, each made when it is asked for: a million take little memory.

    They are equal to a tuple of the same names, and print and hash as their tuple.

    Args:
        count: how many there are.
        name: the name of a position.

    Example:
        >>> names = Names.of(["north", "south"])
        >>> names, names[1], names == ("north", "south")
        (('north', 'south'), 'south', True)
    """

    def __init__(self, count: int, name: Callable[[int], str]) -> None:
        self._count, self._name = count, name

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Names kept as one text, in a quarter of the memory of a tuple."""
        parts, ends, rest = [""], array("q", [0]), iter(names)
        while block := list(islice(rest, _BLOCK)):
            parts.append("".join(block))
            ends.extend(accumulate(map(len, block), initial=ends.pop()))
        text = "".join(parts)
        short = array("i", ends) if len(text) < 2**31 else ends
        return cls(len(ends) - 1, partial(_part, text, short))

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


def _part(text: str, ends: array[int], row: int) -> str:
    return text[ends[row] : ends[row + 1]]


def _number(word: str, digits: int, row: int) -> str:
    return f"{word}-{row:0{digits}d}"


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

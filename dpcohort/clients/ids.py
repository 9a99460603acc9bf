# SPDX-License-Identifier: Apache-2.0
"""Ids of clients: which are allowed, which one was meant, and ids for clients without any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dpcohort._validate import nearest
from dpcohort.errors import InputError

__all__ = ["MAX_ID_LENGTH", "BadId", "as_ids", "bad_ids", "nearest_id", "numbered"]

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

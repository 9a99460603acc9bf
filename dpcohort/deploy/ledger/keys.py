# SPDX-License-Identifier: Apache-2.0
"""The name of one draw for ever: data set, run, round and draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpcohort._validate import whole_number
from dpcohort.errors import InputError

__all__ = ["DrawKey", "name"]

_LONGEST_NAME = 200
_LARGEST_INDEX = 10**9


def name(field: str, value: Any) -> str:
    """The value as a name: 1 to 200 printable characters, no space at either end.

    Example:
        >>> name("dataset", "ward-7")
        'ward-7'
    """
    if (
        isinstance(value, str)
        and 0 < len(value) <= _LONGEST_NAME
        and value.isprintable()
        and value == value.strip()
    ):
        return value
    allowed = f"a name of 1 to {_LONGEST_NAME} printable characters, no space at either end"
    raise InputError(field, given=value, allowed=allowed)


@dataclass(frozen=True, kw_only=True, order=True)
class DrawKey:
    """Which draw: a draw has at most one output, ever, and this is how it is called.

    Attributes:
        dataset: the registered data set.
        run: the accepted run.
        round: from 0.
        draw: position in the round's cohort, or any other number unique in the round, from 0.

    Example:
        >>> print(DrawKey(dataset="ward-7", run="spring", round=3, draw=0))
        ward-7 / spring / round 3 / draw 0
    """

    dataset: str
    run: str
    round: int
    draw: int

    def __post_init__(self) -> None:
        name("dataset", self.dataset)
        name("run", self.run)
        for field in ("round", "draw"):
            value = whole_number(field, getattr(self, field), at_least=0, at_most=_LARGEST_INDEX)
            object.__setattr__(self, field, value)

    def __str__(self) -> str:
        return f"{self.dataset} / {self.run} / round {self.round} / draw {self.draw}"

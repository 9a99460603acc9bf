# SPDX-License-Identifier: Apache-2.0
"""Checks of a value, with the messages of the product: field, value, and what is allowed."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.errors import InputError

__all__ = ["FloatArray", "IntArray", "choice", "did_you_mean", "number", "whole_number"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_HOLDS = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}


def number(field: str, value: Any, **bounds: float) -> float:
    """The value as a finite float inside its bounds: above, at_least, below, at_most.

    Args:
        field: what the value is called.
        value: as it was given.
        bounds: where it must lie.

    Raises:
        InputError: it is no finite number, or outside.

    Example:
        >>> number("delta", 1e-5, above=0, below=1)
        1e-05
    """
    try:
        found = float(value) if _is_number(value) else math.nan
    except OverflowError:
        found = math.nan
    return _inside(field, value, found, "a finite number", bounds)


def whole_number(field: str, value: Any, **bounds: int) -> int:
    """The value as an int inside its bounds; 3.0 is accepted, 3.5 is not.

    Args:
        field: what the value is called.
        value: as it was given.
        bounds: where it must lie.

    Raises:
        InputError: it is no whole number, or outside.

    Example:
        >>> whole_number("rounds", 100, at_least=1)
        100
    """
    found = value if _is_number(value) and value == value // 1 else math.nan
    return int(_inside(field, value, found, "a whole number", bounds))


def choice(field: str, value: str, allowed: Iterable[str]) -> str:
    """The value if it is one of the allowed words.

    Args:
        field: what the value is called.
        value: as it was given.
        allowed: the words.

    Raises:
        InputError: it is none of them; the nearest one is suggested.

    Example:
        >>> choice("sampler", "poisson", ["poisson", "fixed"])
        'poisson'
    """
    words = list(allowed)
    if value in words:
        return value
    listed = "one of " + ", ".join(words)
    raise InputError(field, given=value, allowed=listed, next_step=did_you_mean(value, words))


def did_you_mean(given: str, words: Iterable[str]) -> str | None:
    """The sentence that suggests the nearest word; None if nothing is close.

    Args:
        given: the word that nobody knows.
        words: the known ones.

    Example:
        >>> did_you_mean("epsilom", ["id", "size", "epsilon"])
        "Did you mean 'epsilon'?"
    """
    near = difflib.get_close_matches(given.lower(), list(words), n=1, cutoff=0.6)
    return f"Did you mean {near[0]!r}?" if near else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _inside(field: str, given: Any, value: float, kind: str, bounds: Mapping[str, float]) -> float:
    is_finite = -math.inf < value < math.inf  # also of an int that no float can hold
    if is_finite and all(_HOLDS[name](value, bound) for name, bound in bounds.items()):
        return value
    words = [f" {name.replace('_', ' ')} {bound:.9g}" for name, bound in bounds.items()]
    raise InputError(field, given=given, allowed=kind + " and".join(words))

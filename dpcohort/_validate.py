# SPDX-License-Identifier: Apache-2.0
"""One voice for every check of a value: each names the field, the value and what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpcohort.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

__all__ = [
    "BoolArray",
    "FloatArray",
    "IntArray",
    "choice",
    "float_array",
    "nearest",
    "number",
    "whole_number",
]


def number(
    field: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """The value as a finite float inside the stated bounds.

    Example:
        >>> number("delta", 1e-5, above=0, below=1)
        1e-05
    """
    allowed = "a finite number" + _bounds(above, at_least, below, at_most)
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(field, given=value, allowed=allowed)
    try:
        result = float(value)
    except OverflowError:
        raise InputError(field, given=value, allowed=allowed) from None
    inside = (
        math.isfinite(result)
        and (above is None or result > above)
        and (at_least is None or result >= at_least)
        and (below is None or result < below)
        and (at_most is None or result <= at_most)
    )
    if not inside:
        raise InputError(field, given=value, allowed=allowed)
    return result


def whole_number(
    field: str, value: Any, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """The value as an int inside the stated bounds; 3.0 is accepted, 3.5 is not.

    Example:
        >>> whole_number("rounds", 100, at_least=1)
        100
    """
    allowed = "a whole number" + _bounds(None, at_least, None, at_most)
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if isinstance(value, bool) or not is_number or value != value or value in (math.inf, -math.inf):
        raise InputError(field, given=value, allowed=allowed)
    result = int(value)
    inside = (at_least is None or result >= at_least) and (at_most is None or result <= at_most)
    if result != value or not inside:
        raise InputError(field, given=value, allowed=allowed)
    return result


def choice(field: str, value: Any, allowed: Iterable[str]) -> str:
    """The value if it is one of the allowed words; otherwise the nearest one is suggested.

    Example:
        >>> choice("sampler", "poisson", ["poisson", "fixed"])
        'poisson'
    """
    words = list(allowed)
    if isinstance(value, str) and value in words:
        return value
    hint = nearest(str(value), words)
    raise InputError(
        field,
        given=value,
        allowed="one of " + ", ".join(words),
        next_step=f"Did you mean {hint!r}?" if hint else None,
    )


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The allowed word closest to what was typed, or None if nothing is close.

    Example:
        >>> nearest("epsilom", ["id", "size", "epsilon"])
        'epsilon'
    """
    found = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return found[0] if found else None


def float_array(
    field: str,
    values: ArrayLike,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    allow_infinite: bool = False,
) -> FloatArray:
    """The values as a float64 array; the first entry out of bounds is named by its index.

    Example:
        >>> float_array("epsilon", [0.5, 2], above=0)
        array([0.5, 2. ])
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(field, given=values, allowed="numbers only") from None
    good = np.ones(array.shape, dtype=np.bool_) if allow_infinite else np.isfinite(array)
    good &= ~np.isnan(array)
    for bound, holds in (
        (above, np.greater),
        (at_least, np.greater_equal),
        (below, np.less),
        (at_most, np.less_equal),
    ):
        if bound is not None:
            good &= holds(array, bound)
    if not good.all():
        position = tuple(int(i) for i in np.argwhere(~np.atleast_1d(good))[0])
        label = field if array.ndim == 0 else f"{field}[{', '.join(map(str, position))}]"
        kind = "a number" if allow_infinite else "a finite number"
        raise InputError(
            label,
            given=float(np.atleast_1d(array)[position]),
            allowed=kind + _bounds(above, at_least, below, at_most),
        )
    return array


def _bounds(
    above: float | None, at_least: float | None, below: float | None, at_most: float | None
) -> str:
    parts = [
        f"{word} {_plain(bound)}"
        for word, bound in (
            ("above", above),
            ("at least", at_least),
            ("below", below),
            ("at most", at_most),
        )
        if bound is not None
    ]
    return " " + " and ".join(parts) if parts else ""


def _plain(bound: float) -> str:
    """A bound as a person writes it: 1000000, not 1e+06."""
    return str(int(bound)) if bound == int(bound) and abs(bound) < 1e9 else f"{bound:g}"

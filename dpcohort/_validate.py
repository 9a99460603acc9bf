# SPDX-License-Identifier: Apache-2.0
"""One voice for every check of a value: each names the field, the value and what is allowed."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpcohort.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Bounds(TypedDict, total=False):
    """Where a number must lie; a bound that is None or left out does not bind."""

    above: float | None
    at_least: float | None
    below: float | None
    at_most: float | None


_HOLDS = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}


def number(field: str, value: Any, **bounds: Unpack[Bounds]) -> float:
    """The value as a finite float inside the stated bounds.

    Example:
        >>> number("delta", 1e-5, above=0, below=1)
        1e-05
    """
    try:
        result = float(value) if _is_number(value) else math.nan
    except OverflowError:
        result = math.nan
    if not math.isfinite(result) or not _inside(result, bounds):
        raise InputError(field, given=value, allowed="a finite number" + _words(bounds))
    return result


def whole_number(field: str, value: Any, **bounds: Unpack[Bounds]) -> int:
    """The value as an int inside the stated bounds; 3.0 is accepted, 3.5 is not.

    Example:
        >>> whole_number("rounds", 100, at_least=1)
        100
    """
    # A whole number may be too large for a float, so it is never made one.
    is_whole = _is_number(value) and value not in (math.inf, -math.inf) and value == value // 1
    if not is_whole or not _inside(int(value), bounds):
        raise InputError(field, given=value, allowed="a whole number" + _words(bounds))
    return int(value)


def choice(field: str, value: Any, allowed: Iterable[str]) -> str:
    """The value if it is one of the allowed words; otherwise the nearest one is suggested.

    Example:
        >>> choice("sampler", "poisson", ["poisson", "fixed"])
        'poisson'
    """
    words = list(allowed)
    if isinstance(value, str) and value in words:
        return value
    listed = "one of " + ", ".join(words)
    raise InputError(field, given=value, allowed=listed, next_step=did_you_mean(value, words))


def did_you_mean(given: object, words: Iterable[str]) -> str | None:
    """The sentence that ends every error about a name nobody knows; None if nothing is close.

    Example:
        >>> did_you_mean("epsilom", ["id", "size", "epsilon"])
        "Did you mean 'epsilon'?"
    """
    hint = nearest(str(given), words)
    return None if hint is None else f"Did you mean {hint!r}?"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The allowed word closest to what was typed, or None if nothing is close.

    Example:
        >>> nearest("epsilom", ["id", "size", "epsilon"])
        'epsilon'
    """
    found = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return found[0] if found else None


def float_array(
    field: str, values: ArrayLike, *, allow_infinite: bool = False, **bounds: Unpack[Bounds]
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
    good = ~np.isnan(array) if allow_infinite else np.isfinite(array)
    good &= _inside(array, bounds)
    if not good.all():
        position = tuple(int(i) for i in np.argwhere(~np.atleast_1d(good))[0])
        label = field if array.ndim == 0 else f"{field}[{', '.join(map(str, position))}]"
        kind = "a number" if allow_infinite else "a finite number"
        given = float(np.atleast_1d(array)[position])
        raise InputError(label, given=given, allowed=kind + _words(bounds))
    return array


def _is_number(value: Any) -> bool:
    kinds = int | float | np.integer | np.floating
    return isinstance(value, kinds) and not isinstance(value, bool)


def _inside(value: Any, bounds: Bounds) -> Any:
    """Whether the value, or each of an array of values, is inside all bounds."""
    inside: Any = True
    for name, bound in _given(bounds):
        inside = inside & _HOLDS[name](value, bound)
    return inside


def _words(bounds: Bounds) -> str:
    said = [f" {name.replace('_', ' ')} {_plain(bound)}" for name, bound in _given(bounds)]
    return " and".join(said)


def _given(bounds: Bounds) -> list[tuple[str, Any]]:
    stated: Mapping[str, Any] = bounds
    return [(name, stated[name]) for name in _HOLDS if stated.get(name) is not None]


def _plain(bound: float) -> str:
    """A bound as a person writes it: 1000000, not 1e+06."""
    return str(int(bound)) if bound == int(bound) and abs(bound) < 1e9 else f"{bound:g}"

# SPDX-License-Identifier: Apache-2.0
"""One question about many clients: checked, broadcast like a numpy ufunc, answered one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array
from dpcohort.errors import InputError

__all__ = ["answer_each", "broadcast_fields", "whole_steps"]

_MOST_STEPS = 10**12


def answer_each(
    answer: Callable[[float, float, float, int], float],
    *,
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    **asked: FloatArray,
) -> float | FloatArray:
    """The answer for every client; each distinct tuple is asked once.

    Args:
        answer: function of (asked value, noise multiplier, sampling rate, steps).
        noise_multiplier: at least 0, infinite allowed.
        sampling_rate: in (0, 1].
        steps: whole numbers of at least 0.
        **asked: the one further value (``epsilon`` or ``delta``), already checked.

    Returns:
        A float for scalars, otherwise an array of the broadcast shape.

    Example:
        >>> answer_each(lambda delta, z, r, n: n * r / z, noise_multiplier=[1.0, 2.0],
        ...             sampling_rate=0.5, steps=4, delta=np.array(1e-5))
        array([2., 1.])
    """
    rows = broadcast_fields(
        **asked,
        noise_multiplier=float_array(
            "noise_multiplier", noise_multiplier, at_least=0, allow_infinite=True
        ),
        sampling_rate=float_array("sampling_rate", sampling_rate, above=0, at_most=1),
        steps=whole_steps(steps),
    )
    known: dict[tuple[float, float, float, float], float] = {}
    flat = np.empty(rows[0].size)
    for index, row in enumerate(zip(*(row.ravel().tolist() for row in rows), strict=True)):
        if row not in known:
            known[row] = answer(row[0], row[1], row[2], int(row[3]))
        flat[index] = known[row]
    return float(flat[0]) if rows[0].ndim == 0 else flat.reshape(rows[0].shape)


def broadcast_fields(**columns: FloatArray) -> tuple[FloatArray, ...]:
    """The columns in their common shape; an error names the shapes that do not go together.

    Example:
        >>> broadcast_fields(epsilon=np.array([1.0, 2.0]), delta=np.array(1e-5))[1]
        array([1.e-05, 1.e-05])
    """
    try:
        return tuple(np.broadcast_arrays(*columns.values()))
    except ValueError:
        raise InputError(
            "shapes of " + ", ".join(columns),
            given=[column.shape for column in columns.values()],
            allowed="equal, or such that they broadcast",
        ) from None


def whole_steps(steps: ArrayLike) -> FloatArray:
    """Numbers of steps as floats without a fraction.

    Example:
        >>> whole_steps([1, 20])
        array([ 1., 20.])
    """
    count = float_array("steps", steps, at_least=0, at_most=_MOST_STEPS)
    fractions = count[np.floor(count) != count]
    if fractions.size:
        raise InputError(
            "steps", given=float(fractions.flat[0]), allowed="a whole number of at least 0"
        )
    return count

# SPDX-License-Identifier: Apache-2.0
"""The input of Problem 1, checked: one voice for costs, floors, caps and unbiased probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array
from dpcohort.errors import InputError
from dpcohort.selection.certificate import LARGEST_COST, Costs

__all__ = [
    "SMALLEST_COST",
    "bounded_costs",
    "checked_bound",
    "checked_costs",
    "checked_unbiased",
    "scaled_costs",
]

#: Smaller costs count as 0, which changes F by less than 1e-139.
SMALLEST_COST = 1e-280


def checked_unbiased(unbiased: ArrayLike) -> FloatArray:
    """P^u as a float64 array that sums to 1; sums within 1e-9 of 1 are scaled.

    Example:
        >>> checked_unbiased([0.25, 0.75])
        array([0.25, 0.75])
    """
    u = _as_floats("unbiased", unbiased)
    if u.ndim != 1 or u.size == 0:
        raise InputError(
            "unbiased", given=u.shape, allowed="one probability for each client, at least one"
        )
    if not float(u.min()) >= 0.0:
        float_array("unbiased", u, at_least=0)
    total = float(u.sum())
    if not abs(total - 1.0) <= 1e-9:
        float_array("unbiased", u, at_least=0, at_most=1)
        raise InputError(
            "sum of unbiased",
            given=total,
            allowed="1 (up to 1e-9)",
            next_step="Divide the sizes by their sum.",
        )
    return u if abs(total - 1.0) <= 2.0**-51 else u / total


def checked_costs(field: str, costs: ArrayLike, size: int) -> FloatArray:
    """Costs as a float64 array of the right shape, at least 0 and perhaps infinite.

    Example:
        >>> checked_costs("noise_costs", [0, 2, np.inf], 3)
        array([ 0.,  2., inf])
    """
    array = _as_floats(field, costs)
    if array.shape != (size,):
        raise InputError(
            f"shape of {field}", given=array.shape, allowed=f"({size},), as that of unbiased"
        )
    if not float(array.min()) >= 0.0:
        float_array(field, array, at_least=0, allow_infinite=True)
    return array


def checked_bound(field: str, bound: ArrayLike | None, u: FloatArray) -> FloatArray | None:
    """A floor or cap for every client, from one number or one for each; None if there is none.

    Example:
        >>> checked_bound("cap", 0.75, np.array([0.5, 0.5]))
        array([0.75, 0.75])
    """
    if bound is None:
        return None
    array = float_array(field, bound, at_least=0, allow_infinite=field == "cap")
    if array.ndim == 0:
        return np.full_like(u, float(array))
    if array.shape != u.shape:
        raise InputError(
            f"shape of {field}",
            given=array.shape,
            allowed=f"one number, or ({u.size},) as that of unbiased",
        )
    return array


def _as_floats(field: str, values: ArrayLike) -> FloatArray:
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        return values
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(field, given=values, allowed="numbers only") from None


def bounded_costs(
    u: FloatArray,
    a: FloatArray,
    b: FloatArray | None,
    floor: FloatArray | None,
    cap: FloatArray | None,
    gap: float,
) -> tuple[Costs, bool]:
    """The instance with infinite costs turned into caps, and whether a floor forces one of them."""
    a = np.where(a < SMALLEST_COST, 0.0, a)
    barred = a > LARGEST_COST
    if b is not None:
        b = np.where(b < SMALLEST_COST, 0.0, b)
        barred |= b > LARGEST_COST
    _check_bounds(floor, cap, u.size)
    unavoidable = False
    if barred.any():
        lowest = np.zeros_like(u) if floor is None else floor
        unavoidable = bool((lowest[barred] > 0.0).any())
        cap = np.where(barred, lowest, 1.0 if cap is None else cap)
        if float(cap.sum()) < 1.0 - 1e-12:
            raise InputError.because(
                f"{np.count_nonzero(barred)} of {u.size} clients have infinite costs, and the caps "
                f"of the others sum to {float(cap.sum()):g}, which is below 1. Raise the caps or "
                "check for clients without data or with epsilon = 0."
            )
        a = np.where(barred, 0.0, a)
        b = None if b is None else np.where(barred, 0.0, b)
    return Costs(u, a, b, floor, cap, gap), unavoidable


def _check_bounds(floor: FloatArray | None, cap: FloatArray | None, size: int) -> None:
    if floor is not None and float(floor.sum()) > 1.0 + 1e-12:
        raise InputError(
            "floor",
            given=float(floor.sum()),
            allowed=f"at most 1 when summed over the {size} clients",
            next_step="No probabilities can meet it; lower the floor.",
        )
    if cap is not None and float(cap.sum()) < 1.0 - 1e-12:
        raise InputError(
            "cap",
            given=float(cap.sum()),
            allowed=f"at least 1 when summed over the {size} clients",
            next_step="No probabilities can meet it; raise the cap.",
        )
    if floor is not None and cap is not None and bool((floor > cap).any()):
        k = int(np.flatnonzero(floor > cap)[0])
        raise InputError(
            f"floor[{k}]",
            given=float(floor[k]),
            allowed=f"at most cap[{k}] = {float(cap[k]):g}",
        )


def scaled_costs(factor: float, costs: FloatArray) -> FloatArray:
    """Costs times a factor; an infinite cost stays infinite where the factor is 0.

    Example:
        >>> scaled_costs(0.0, np.array([2.0, np.inf]))
        array([ 0., inf])
    """
    if factor > 0.0:
        with np.errstate(over="ignore"):
            return factor * costs
    return np.where(np.isinf(costs), np.inf, 0.0)

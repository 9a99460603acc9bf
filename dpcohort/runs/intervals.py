# SPDX-License-Identifier: Apache-2.0
"""Means with confidence intervals over seeds (Student's t)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpcohort._validate import number
from dpcohort.errors import InputError

__all__ = ["Interval", "mean_interval"]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and where it may lie.

    Attributes:
        mean: of the values.
        low: lower end; -inf from a single value.
        high: upper end; inf from a single value.
        count: number of values.
        confidence: of the interval.
    """

    mean: float
    low: float
    high: float
    count: int
    confidence: float = 0.95

    @property
    def half_width(self) -> float:
        """Distance from the mean to either end."""
        return (self.high - self.low) / 2

    def excludes(self, value: float) -> bool:
        """Whether the value is outside."""
        return not self.low <= value <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """The mean of independent values and its t-interval.

    One value has a mean and no interval: its ends are infinite, so that nothing is concluded.

    Example:
        >>> found = mean_interval([1.0, 2.0, 3.0])
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
        (2.0, -0.484, 4.484)
    """
    from scipy.stats import t as student

    number("confidence", confidence, above=0, below=1)
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise InputError("values", given=list(values), allowed="one or more finite numbers")
    mean = float(array.mean())
    half = math.inf
    if array.size > 1:
        quantile = float(student.ppf((1 + confidence) / 2, array.size - 1))
        half = quantile * float(array.std(ddof=1)) / math.sqrt(array.size)
    return Interval(
        mean=mean, low=mean - half, high=mean + half, count=int(array.size), confidence=confidence
    )

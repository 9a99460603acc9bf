# SPDX-License-Identifier: Apache-2.0
"""Eta, the weight of the privacy noise in Problem 1, and the smoothness it is made of.

Theorem 2 carries the noise as ``2 L sqrt(T) sum p_k^2 D V_k``. Problem 1 keeps D inside the sum, so
the theorem's weight is ``eta = 2 L sqrt(T)``. The paper prints ``eta = D sqrt(T L)``, which counts
D twice, has L under the root and misses the 2; it treats eta as tunable, and so may you.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array, number, whole_number
from dpcohort.errors import InputError

__all__ = ["Eta", "estimate_smoothness", "resolve_eta"]

Eta = float | Literal["auto"]

#: The power iteration that sharpens the best random pair stops when a step gains less than this.
_LEAST_GAIN = 1e-6
_MOST_REFINEMENTS = 500


def resolve_eta(eta: Eta, *, total_steps: int, smoothness: float) -> float:
    """Eta as a number: the one given, or ``2 L sqrt(T)`` (Theorem 2) for ``"auto"``.

    Args:
        eta: a number at least 0, or ``"auto"``.
        total_steps: T = T^g T^l.
        smoothness: L.

    Example:
        >>> resolve_eta("auto", total_steps=100, smoothness=1.5)
        30.0
        >>> resolve_eta(0.25, total_steps=100, smoothness=1.5)
        0.25
    """
    if isinstance(eta, str):
        if eta != "auto":
            raise InputError("eta", given=eta, allowed="a number at least 0, or 'auto'")
        steps = whole_number("total_steps", total_steps, at_least=1)
        return 2.0 * number("smoothness", smoothness, above=0) * math.sqrt(steps)
    return number("eta", eta, at_least=0)


def estimate_smoothness(
    gradient: Callable[[FloatArray], ArrayLike],
    start: ArrayLike,
    *,
    radius: float,
    samples: int,
    rng: np.random.Generator,
) -> float:
    """An estimate of the smoothness L from gradients on PUBLIC data.

    The largest ``||g(w) - g(v)|| / ||w - v||`` over random pairs, sharpened by following the
    direction in which the gradient changes most (a power iteration on finite differences).

    Warning:
        Never use private data here: the result depends on it and no budget pays for that. The
        result is a lower estimate; L may be larger elsewhere.

    Args:
        gradient: the gradient at a point, a function of public data only.
        start: the point around which to look, usually the initial model.
        radius: how far from ``start`` to look.
        samples: number of random pairs.
        rng: source of the pairs.

    Returns:
        The estimate of L, above 0 unless the gradient is constant.

    Example:
        >>> curvature = np.array([1.0, 2.0, 5.0])
        >>> rng = np.random.default_rng(0)
        >>> found = estimate_smoothness(
        ...     lambda w: curvature * w, np.zeros(3), radius=1.0, samples=8, rng=rng
        ... )
        >>> round(found, 3)
        5.0
    """
    centre = float_array("start", start)
    if centre.ndim != 1 or centre.size == 0:
        raise InputError("start", given=centre.shape, allowed="one value for each parameter")
    radius = number("radius", radius, above=0)
    samples = whole_number("samples", samples, at_least=1)
    step = 1e-3 * radius
    largest = 0.0
    best_point, best_direction = centre, _unit(rng.standard_normal(centre.size))
    for _ in range(samples):
        length = radius * rng.random()
        point = centre + length * _unit(rng.standard_normal(centre.size))
        other = centre + radius * rng.random() * _unit(rng.standard_normal(centre.size))
        separation = float(np.linalg.norm(other - point))
        if separation == 0.0:
            continue
        change = _gradient_at(gradient, other) - _gradient_at(gradient, point)
        ratio = float(np.linalg.norm(change)) / separation
        if ratio > largest:
            largest, best_point, best_direction = ratio, point, (other - point) / separation
    here = _gradient_at(gradient, best_point)
    direction, previous = best_direction, 0.0
    for _ in range(_MOST_REFINEMENTS):
        change = _gradient_at(gradient, best_point + step * direction) - here
        ratio = float(np.linalg.norm(change)) / step
        largest = max(largest, ratio)
        if ratio <= previous * (1.0 + _LEAST_GAIN):
            break
        direction, previous = _unit(change), ratio
    return largest


def _gradient_at(gradient: Callable[[FloatArray], ArrayLike], point: FloatArray) -> FloatArray:
    value = float_array("gradient(w)", gradient(point))
    if value.shape != point.shape:
        raise InputError(
            "shape of gradient(w)", given=value.shape, allowed=f"{point.shape}, as that of start"
        )
    return value


def _unit(vector: FloatArray) -> FloatArray:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0.0 else vector

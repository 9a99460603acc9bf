# SPDX-License-Identifier: Apache-2.0
"""The certificate: what a deployed (noise multiplier, rate, steps) really spends.

Two independent pessimistic computations are offered. ``pld`` is our own
(:mod:`dpcohort.accounting.pld`); it covers every sampler and counts its own rounding errors.
``dp-accounting`` is Google's library; it covers Poisson sampling. ``auto`` asks the library where
it is sound and us elsewhere: fixed batches, tiny sampling rates, and targets of δ that are so small
against the number of steps that the rounding noise of the library's transform, which it does not
count, would show.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, get_args, overload

from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, choice, float_array
from dpcohort.accounting.broadcast import answer_each
from dpcohort.accounting.contract import Neighbours, resolve_neighbours
from dpcohort.accounting.grids import TINY_RATE, Sketch
from dpcohort.accounting.pairs import pairs_of_step
from dpcohort.accounting.pld import Steps, composed_delta, composed_epsilon
from dpcohort.errors import InputError

__all__ = ["Method", "certify_delta", "certify_epsilon"]

Method = Literal["auto", "pld", "dp-accounting"]

_TOLERANCE = 1e-4
_MOST_POINTS = 2e6
# The library's transform leaves noise of about 1e-13 per step in δ: stay 10,000 times above it.
_LEAST_DELTA_PER_STEP = 1e-9
_LARGEST_NOISE = 1e6
# Its grid masses are second differences of δ, which cancel on a finer grid.
_FINEST_GRID = 1e-6
_LARGEST_SHIFT = 50.0


@overload
def certify_epsilon(
    *,
    noise_multiplier: float,
    delta: float,
    sampling_rate: float,
    steps: float,
    sampler: str = ...,
    neighbours: str | None = ...,
    method: str = ...,
) -> float: ...
@overload
def certify_epsilon(
    *,
    noise_multiplier: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = ...,
    neighbours: str | None = ...,
    method: str = ...,
) -> FloatArray: ...
def certify_epsilon(
    *,
    noise_multiplier: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = "poisson",
    neighbours: str | None = None,
    method: str = "auto",
) -> float | FloatArray:
    """An upper bound on the ε that a client spends, independent of how its noise was chosen.

    Args:
        noise_multiplier: z, noise on the clipped sum in units of the clip; 0 gives ε = inf.
        delta: in (0, 1).
        sampling_rate: r in (0, 1].
        steps: number of noisy steps; 0 gives ε = 0.
        sampler: ``poisson`` or ``fixed``.
        neighbours: ``zero-out`` or ``replace-one``; by default the sampler's own.
        method: ``auto``, ``pld`` (ours) or ``dp-accounting`` (Poisson only).

    Returns:
        A float for scalars, otherwise an array of the broadcast shape.

    Example:
        >>> ours, google = (
        ...     certify_epsilon(noise_multiplier=1.5, delta=1e-5, sampling_rate=0.2, steps=100,
        ...                     method=method)
        ...     for method in ("pld", "dp-accounting"))
        >>> round(ours, 2), round(google, 2), abs(ours / google - 1) < 5e-4
        (7.55, 7.55, True)
    """
    relation = _check(sampler, neighbours, method)

    def answer(target: float, z: float, r: float, n: int) -> float:
        if method == "pld" or _is_trivial(z, n) or sampler == "fixed":
            return composed_epsilon((Steps(z, r, n, sampler),), relation, target)
        if method == "auto" and not _library_is_sound(z, r, n, relation, target):
            return composed_epsilon((Steps(z, r, n, sampler),), relation, target)
        return float(_library(z, r, n, relation, target).get_epsilon_for_delta(target))

    return answer_each(
        answer,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        delta=float_array("delta", delta, above=0, below=1),
    )


@overload
def certify_delta(
    *,
    noise_multiplier: float,
    epsilon: float,
    sampling_rate: float,
    steps: float,
    sampler: str = ...,
    neighbours: str | None = ...,
    method: str = ...,
) -> float: ...
@overload
def certify_delta(
    *,
    noise_multiplier: ArrayLike,
    epsilon: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = ...,
    neighbours: str | None = ...,
    method: str = ...,
) -> FloatArray: ...
def certify_delta(
    *,
    noise_multiplier: ArrayLike,
    epsilon: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = "poisson",
    neighbours: str | None = None,
    method: str = "auto",
) -> float | FloatArray:
    """An upper bound on the δ that a client spends at this ε.

    Args:
        noise_multiplier: z, noise on the clipped sum in units of the clip; 0 gives δ = 1.
        epsilon: at least 0.
        sampling_rate: r in (0, 1].
        steps: number of noisy steps; 0 gives δ = 0.
        sampler: ``poisson`` or ``fixed``.
        neighbours: ``zero-out`` or ``replace-one``; by default the sampler's own.
        method: ``auto``, ``pld`` (ours) or ``dp-accounting`` (Poisson only).

    Returns:
        A float for scalars, otherwise an array of the broadcast shape.

    Example:
        >>> delta = certify_delta(noise_multiplier=8.0, epsilon=1.0, sampling_rate=0.2, steps=100,
        ...                       sampler="fixed")
        >>> 0.0111 < delta < 0.0112
        True
    """
    relation = _check(sampler, neighbours, method)

    def answer(target: float, z: float, r: float, n: int) -> float:
        if method == "pld" or _is_trivial(z, n) or sampler == "fixed" or target == math.inf:
            return composed_delta((Steps(z, r, n, sampler),), relation, target)
        if method == "auto":
            ours = composed_delta((Steps(z, r, n, sampler),), relation, target)
            if ours >= 1 or not _library_is_sound(z, r, n, relation, ours):
                return ours
        else:
            ours = 1e-5
        return float(_library(z, r, n, relation, ours).get_delta_for_epsilon(target))

    return answer_each(
        answer,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        epsilon=float_array("epsilon", epsilon, at_least=0, allow_infinite=True),
    )


def _check(sampler: str, neighbours: str | None, method: str) -> Neighbours:
    relation = resolve_neighbours(sampler, neighbours)
    choice("method", method, get_args(Method))
    if method == "dp-accounting" and sampler == "fixed":
        raise InputError(
            "method",
            given=method,
            allowed="'auto' or 'pld' when sampler = 'fixed'",
            next_step="dp-accounting has no tight bound for batches of fixed size.",
        )
    return relation


def _is_trivial(noise_multiplier: float, steps: int) -> bool:
    return steps == 0 or noise_multiplier in (0.0, math.inf)


def _library_is_sound(z: float, r: float, n: int, relation: Neighbours, delta: float) -> bool:
    if r < TINY_RATE:
        return False  # one grid for losses of all sizes
    if delta < _LEAST_DELTA_PER_STEP * n or 1 / z > _LARGEST_SHIFT or z > _LARGEST_NOISE:
        return False
    spacing, least = _spacing(z, r, n, relation, delta)
    return spacing >= max(least, _FINEST_GRID)


def _spacing(z: float, r: float, n: int, relation: Neighbours, delta: float) -> tuple[float, float]:
    """Grid spacing for the library, and the finest one that stays affordable."""
    pairs = pairs_of_step(
        noise_multiplier=z, sampling_rate=r, sampler="poisson", neighbours=relation
    )
    sketch = Sketch([(pairs[0], n)], math.log(delta))
    grid = sketch.grid(sketch.at_delta(math.log(delta)), tolerance=_TOLERANCE)
    return grid.step, grid.window.length / _MOST_POINTS


@lru_cache(maxsize=8)
def _library(z: float, r: float, n: int, relation: Neighbours, delta: float) -> Any:
    """The library's privacy loss distribution, on a grid about as fine as ours."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    relations = dp_accounting.NeighboringRelation
    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=r,
        value_discretization_interval=max(_spacing(z, r, n, relation, delta)),
        neighboring_relation=(
            relations.REPLACE_SPECIAL if relation == "zero-out" else relations.REPLACE_ONE
        ),
    ).self_compose(n)

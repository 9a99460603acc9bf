# SPDX-License-Identifier: Apache-2.0
"""The certificate: what a deployed (noise multiplier, rate, steps) really spends.

Two independent pessimistic computations are offered. ``pld`` is our own
(:mod:`dpcohort.accounting.events`); it covers every sampler and counts its own rounding errors.
``dp-accounting`` is Google's library; it covers Poisson sampling. ``auto`` asks the library where
it is sound and us elsewhere: fixed batches, tiny sampling rates, and targets of δ that are so small
against the number of steps that the rounding noise of the library's transform, which it does not
count, would show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, choice, float_array
from dpcohort.accounting.composition import TINY_RATE, Sketch
from dpcohort.accounting.contract import (
    broadcast_fields,
    float_or_array,
    resolve_neighbours,
    whole_steps,
)
from dpcohort.accounting.events import (
    TOLERANCE,
    Event,
    History,
    composed_delta,
    composed_epsilon,
)
from dpcohort.accounting.pairs import pairs_of_step
from dpcohort.errors import InputError

__all__ = ["Method", "certify_delta", "certify_epsilon", "history_epsilon"]

Method = Literal["auto", "pld", "dp-accounting"]

_MOST_POINTS = 2e6
# The library's transform leaves noise of about 1e-13 per step in δ: stay 10,000 times above it.
_LEAST_DELTA_PER_STEP = 1e-9
_LARGEST_NOISE = 1e6
# Its grid masses are second differences of δ, which cancel on a finer grid.
_FINEST_GRID = 1e-6
_LARGEST_SHIFT = 50.0


def certify_epsilon(
    *,
    noise_multiplier: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = "poisson",
    neighbours: str | None = None,
    method: str = "auto",
) -> Any:
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

    def answer(event: Event, target: float) -> float:
        if method == "pld" or (method == "auto" and not _library_is_sound((event,), target)):
            return composed_epsilon((event,), target)
        return float(_library((event,), target).get_epsilon_for_delta(target))

    return _certified(
        answer,
        (noise_multiplier, sampling_rate, steps),
        (sampler, neighbours, method),
        without_noise=math.inf,
        delta=float_array("delta", delta, above=0, below=1),
    )


def certify_delta(
    *,
    noise_multiplier: ArrayLike,
    epsilon: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = "poisson",
    neighbours: str | None = None,
    method: str = "auto",
) -> Any:
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

    def answer(event: Event, target: float) -> float:
        expected = 1e-5 if method == "dp-accounting" else composed_delta((event,), target)
        if method == "pld" or expected >= 1:
            return expected
        if method == "auto" and not _library_is_sound((event,), expected):
            return expected
        return float(_library((event,), expected).get_delta_for_epsilon(target))

    return _certified(
        answer,
        (noise_multiplier, sampling_rate, steps),
        (sampler, neighbours, method),
        without_noise=1.0,
        epsilon=float_array("epsilon", epsilon, at_least=0, allow_infinite=True),
    )


def _certified(
    answer: Callable[[Event, float], float],
    spent_by: tuple[ArrayLike, ArrayLike, ArrayLike],
    contract: tuple[str, str | None, str],
    *,
    without_noise: float,
    **asked: FloatArray,
) -> Any:
    """The answer for every client; equal clients are asked about once.

    Args:
        answer: function of an event and the value asked about.
        spent_by: noise multiplier, sampling rate and steps.
        contract: sampler, neighbours and method.
        without_noise: the answer where there is no noise.
        **asked: the one value (``epsilon`` or ``delta``) that the answer is for, already checked.
    """
    sampler, neighbours, method = contract
    relation = resolve_neighbours(sampler, neighbours)
    choice("method", method, get_args(Method))
    if method == "dp-accounting" and sampler == "fixed":
        raise InputError(
            "method",
            given=method,
            allowed="'auto' or 'pld' when sampler = 'fixed'",
            next_step="dp-accounting has no tight bound for batches of fixed size.",
        )
    noise, rate, steps = spent_by
    columns = broadcast_fields(
        **asked,
        noise_multiplier=float_array("noise_multiplier", noise, at_least=0, allow_infinite=True),
        sampling_rate=float_array("sampling_rate", rate, above=0, at_most=1),
        steps=whole_steps(steps),
    )

    @cache
    def one(target: float, z: float, r: float, count: float) -> float:
        if count == 0 or math.inf in (z, target):
            return 0.0
        if z == 0:
            return without_noise
        event = Event(
            noise_multiplier=z,
            sampling_rate=r,
            steps=int(count),
            sampler="fixed" if sampler == "fixed" else "poisson",
            neighbours=relation,
        )
        return answer(event, target)

    rows = zip(*(column.ravel().tolist() for column in columns), strict=True)
    found = np.array([one(*row) for row in rows]).reshape(columns[0].shape)
    return float_or_array(found)


def history_epsilon(history: History, delta: float, method: str = "auto") -> float:
    """An upper bound on the ε of a client's whole history, as ``certify_epsilon`` gives of steps.

    Args:
        history: all events of one client.
        delta: in (0, 1).
        method: ``auto`` asks dp-accounting where it is sound, ``pld`` our own composition.

    Example:
        >>> events = (Event(noise_multiplier=2.0, sampling_rate=0.1, steps=50),
        ...           Event(noise_multiplier=20.0, sampling_rate=1.0, steps=10))
        >>> ours, theirs = (history_epsilon(History(events), 1e-5, m) for m in ("pld", "auto"))
        >>> abs(ours / theirs - 1) < 1e-3
        True
    """
    choice("method", method, get_args(Method))
    events = tuple(event for event in history.events if event.steps > 0)
    if method == "pld" or not events or not _library_is_sound(events, delta):
        return history.epsilon(delta)
    return float(_library(events, delta).get_epsilon_for_delta(delta))


def _library_is_sound(events: tuple[Event, ...], delta: float) -> bool:
    if delta < _LEAST_DELTA_PER_STEP * sum(event.steps for event in events):
        return False
    for event in events:
        if event.sampler == "fixed" or event.sampling_rate < TINY_RATE:
            return False  # it has no bound, or one grid for losses of all sizes
        if not 1 / _LARGEST_SHIFT <= event.noise_multiplier <= _LARGEST_NOISE:
            return False
    spacing, least = _spacing(events, delta)
    return spacing >= max(least, _FINEST_GRID)


def _spacing(events: tuple[Event, ...], delta: float) -> tuple[float, float]:
    """Grid spacing for the library, and the finest one that stays affordable."""
    parts = [
        (
            pairs_of_step(
                noise_multiplier=event.noise_multiplier,
                sampling_rate=event.sampling_rate,
                sampler="poisson",
                neighbours=str(event.neighbours),
            )[0],
            event.steps,
        )
        for event in events
    ]
    sketch = Sketch(parts, math.log(delta))
    grid = sketch.grid(sketch.at_delta(math.log(delta)), tolerance=TOLERANCE)
    return grid.step, grid.length / _MOST_POINTS


@lru_cache(maxsize=8)
def _library(events: tuple[Event, ...], delta: float) -> Any:
    """The library's privacy loss distribution, on a grid about as fine as ours."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    relations, spacing = dp_accounting.NeighboringRelation, max(_spacing(events, delta))
    total: Any = None
    for event in events:
        zero_out = event.neighbours == "zero-out"
        part = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sampling_rate,
            value_discretization_interval=spacing,
            neighboring_relation=relations.REPLACE_SPECIAL if zero_out else relations.REPLACE_ONE,
        ).self_compose(event.steps)
        total = part if total is None else total.compose(part)
    return total

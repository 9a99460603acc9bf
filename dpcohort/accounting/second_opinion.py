# SPDX-License-Identifier: Apache-2.0
"""What a client's reports and steps spent together, by an accountant that did not plan them.

Plans are calibrated and certified with our own privacy-loss distribution. Here the same mixed
history is composed by Google's dp-accounting, where that is sound: Poisson batches, and a δ far
above the rounding of its transforms. Elsewhere our own bound stands.
"""

from __future__ import annotations

import math
from typing import Any, get_args

from dpcohort._validate import choice
from dpcohort.accounting.certify import Method
from dpcohort.accounting.composition import Sketch
from dpcohort.accounting.events import Event, History
from dpcohort.accounting.pairs import pairs_of_step

__all__ = ["history_epsilon"]

_TOLERANCE = 1e-4
_MOST_POINTS = 2e6
_FINEST_GRID = 1e-6
_LEAST_DELTA_PER_STEP = 1e-9
_LEAST_NOISE, _LARGEST_NOISE = 0.02, 1e6


def history_epsilon(history: History, delta: float, method: str = "auto") -> float:
    """An upper bound on the ε of a history at this δ.

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
    events = [event for event in history.events if event.steps > 0]
    if method == "pld" or not events or not _is_sound(events, delta):
        return history.epsilon(delta)
    spacing = _spacing(events, delta)
    if not math.isfinite(spacing) or spacing < _FINEST_GRID:
        return history.epsilon(delta)
    total = _library(events[0], spacing)
    for event in events[1:]:
        total = total.compose(_library(event, spacing))
    return float(total.get_epsilon_for_delta(delta))


def _is_sound(events: list[Event], delta: float) -> bool:
    steps = sum(event.steps for event in events)
    return delta >= _LEAST_DELTA_PER_STEP * steps and all(
        event.sampler == "poisson" and _LEAST_NOISE < event.noise_multiplier < _LARGEST_NOISE
        for event in events
    )


def _spacing(events: list[Event], delta: float) -> float:
    """A grid about as fine as our own, no finer than memory allows."""
    parts = [
        (
            pairs_of_step(
                noise_multiplier=event.noise_multiplier,
                sampling_rate=event.sampling_rate,
                sampler=event.sampler,
                neighbours=str(event.neighbours),
            )[0],
            event.steps,
        )
        for event in events
    ]
    sketch = Sketch(parts, math.log(delta))
    grid = sketch.grid(sketch.at_delta(math.log(delta)), tolerance=_TOLERANCE)
    return max(grid.step, grid.length / _MOST_POINTS)


def _library(event: Event, spacing: float) -> Any:
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    relations = dp_accounting.NeighboringRelation
    zero_out = event.neighbours == "zero-out"
    return privacy_loss_distribution.from_gaussian_mechanism(
        event.noise_multiplier,
        sampling_prob=event.sampling_rate,
        value_discretization_interval=spacing,
        neighboring_relation=relations.REPLACE_SPECIAL if zero_out else relations.REPLACE_ONE,
    ).self_compose(event.steps)

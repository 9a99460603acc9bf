# SPDX-License-Identifier: Apache-2.0
"""Noise from bounds that are always valid, for the few clients the contour integral cannot serve.

First the Chernoff bound, for all of them at once; then, client by client, the pessimistic privacy
loss distribution (:mod:`dpcohort.accounting.pld`), which is slow and nearly exact. Both only ever
ask for too much noise.
"""

from __future__ import annotations

import math

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.accounting.loss_grid import Pair
from dpcohort.accounting.moments import Clients, chernoff_log_delta, saddle_order

__all__ = ["fallback_noise"]

# log z is found to this; a client costs at most so many distributions.
_WIDTH = 4e-4
_EVALUATIONS = 14

# With more steps a distribution is too large or too coarse to be worth its time.
_MOST_STEPS = 1e6


def fallback_noise(clients: Clients, *, low: FloatArray, high: FloatArray) -> FloatArray:
    """A log z at which every client keeps its promise, close to the smallest.

    Args:
        clients: the clients; ``remove`` stands for both directions of zero-out.
        low: a lower bound of log z.
        high: a log z that is known to be private.

    Example:
        >>> one = np.ones(1)
        >>> clients = Clients.of(
        ...     "remove", epsilon=one, delta=1e-5 * one, rate=0.1 * one, steps=50 * one
        ... )
        >>> found = fallback_noise(clients, low=np.log(one), high=np.log(30 * one))
        >>> bool(2.8 < np.exp(found[0]) < 3.0)
        True
    """
    result = _chernoff_noise(clients, low, high)
    for i in np.flatnonzero(clients.steps <= _MOST_STEPS):
        result[i] = _distribution_noise(
            clients.take(np.array([i])), float(low[i]), float(result[i])
        )
    return result


def _chernoff_noise(clients: Clients, low: FloatArray, high: FloatArray) -> FloatArray:
    low, high = low.copy(), high.copy()
    pairs: tuple[Pair, ...] = ("remove", "add") if clients.pair == "remove" else (clients.pair,)
    orders = {pair: np.ones(clients.size) for pair in pairs}
    for _ in range(16):
        middle = 0.5 * (low + high)
        kept = np.ones(clients.size, dtype=np.bool_)
        for pair in pairs:
            some = clients.facing(pair)
            orders[pair], at = saddle_order(some, some.shift(middle), orders[pair])
            kept &= chernoff_log_delta(some, orders[pair], at) <= clients.log_delta
        low, high = np.where(kept, low, middle), np.where(kept, middle, high)
    return high


def _distribution_noise(client: Clients, low: float, high: float) -> float:
    """Regula falsi (Illinois) on the certified delta; ``high`` stays private throughout."""
    below, above = math.inf, -math.inf  # excess of log delta at low and high, not known yet
    for _ in range(_EVALUATIONS):
        if high - low <= _WIDTH:
            break
        middle = 0.5 * (low + high)
        if math.isfinite(below) and math.isfinite(above):
            middle = low + (high - low) * below / (below - above)
            middle = min(max(middle, low + 0.1 * _WIDTH), high - 0.1 * _WIDTH)
        excess = _certified_excess(client, math.exp(middle))
        if excess > 0:
            low, below, above = middle, excess, 0.5 * above
        else:
            high, above, below = middle, excess, 0.5 * below
    return high


def _certified_excess(client: Clients, noise: float) -> float:
    # imported here, as hardly any client comes this way
    from dpcohort.accounting.pld import certified_delta

    delta = certified_delta(
        epsilon=float(client.epsilon[0]),
        noise_multiplier=noise,
        sampling_rate=float(client.rate[0]),
        steps=float(client.steps[0]),
        sampler="fixed" if client.pair == "fixed" else "poisson",
        neighbours="zero-out" if client.pair in ("remove", "add") else "replace-one",
    )
    return (math.log(delta) if delta > 0 else -800.0) - float(client.log_delta[0])

# SPDX-License-Identifier: Apache-2.0
"""Noise from bounds that are always valid, for the clients the contour integral cannot serve.

First the Chernoff bound, for all of them at once; then, client by client, the pessimistic privacy
loss distribution (:mod:`dpcohort.accounting.pld`), which is slow and nearly exact. At tiny sampling
rates (:mod:`dpcohort.accounting.rare_losses`) the distribution is quick, and the search for the
noise starts from that of a single loss. All of them only ever ask for too much noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.accounting.loss_grid import Pair
from dpcohort.accounting.moments import Clients, chernoff_log_delta, saddle_order

__all__ = ["fallback_noise", "rare_noise"]

# log z is found to this; a client costs at most so many distributions.
_WIDTH = 4e-4
_EVALUATIONS = 14

# At tiny rates: how closely log z is found, and how fast log delta usually falls with it.
_RARE_WIDTH = 1e-3
_RARE_SLOPE = -25.0

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


def rare_noise(clients: Clients, *, guess: FloatArray, high: FloatArray) -> FloatArray:
    """The same for tiny sampling rates: the secant method on the certified delta.

    Args:
        clients: the clients; ``remove`` stands for both directions of zero-out.
        guess: where to start looking for log z.
        high: a log z that is known to be private.

    Example:
        >>> one = np.ones(1)
        >>> clients = Clients.of(
        ...     "remove", epsilon=one, delta=1e-5 * one, rate=1e-5 * one, steps=1000 * one
        ... )
        >>> found = rare_noise(clients, guess=np.log(0.3 * one), high=np.log(3 * one))
        >>> bool(0.35 < np.exp(found[0]) < 0.36)
        True
    """
    return np.array(
        [
            _rare_noise(clients.take(np.array([i])), float(guess[i]), float(high[i]))
            for i in range(clients.size)
        ]
    )


def _rare_noise(client: Clients, guess: float, high: float) -> float:
    # of the two directions of zero-out the second is hardly ever the worse one
    found = _rare_search(lambda noise: _first_excess(client, noise), guess, high)
    if client.pair == "remove" and _certified_excess(client, math.exp(found)) > 0:
        found = _rare_search(lambda noise: _certified_excess(client, noise), found, high)
    return found


def _rare_search(excess_at: Callable[[float], float], guess: float, high: float) -> float:
    """The secant method; ``high`` stays private throughout."""
    low, slope = -math.inf, _RARE_SLOPE
    here = min(guess, high)
    last: tuple[float, float] | None = None
    for _ in range(_EVALUATIONS):
        excess = excess_at(math.exp(here))
        if excess > 0:
            low = max(low, here)
        else:
            high = min(high, here)
            if excess >= slope * _RARE_WIDTH:
                break
        if high - low <= _RARE_WIDTH:
            break
        if last is not None and abs(here - last[0]) > 0.1 * _RARE_WIDTH:
            slope = min(max((excess - last[1]) / (here - last[0]), -200.0), -2.0)
        last = here, excess
        # aim at the middle of what is accepted
        there = here + min(max(0.5 * _RARE_WIDTH - excess / slope, -0.3), 0.3)
        if not low < there < high:
            there = 0.5 * (max(low, here - 0.3) + high)
        here = there
    return high


def _first_excess(client: Clients, noise: float) -> float:
    from dpcohort.accounting.pairs import LossPair
    from dpcohort.accounting.rare_losses import RareLosses

    shift = float(client.shift(np.array(math.log(noise))))
    pair = LossPair(kind=client.pair, shift=shift, rate=float(client.rate[0]))
    promised = math.exp(float(client.log_delta[0]))
    delta = RareLosses([(pair, int(client.steps[0]))]).delta(
        float(client.epsilon[0]), expected=promised
    )
    return math.log(max(delta, 1e-300)) - float(client.log_delta[0])


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
    from dpcohort.accounting.pld import TOLERANCE, Steps, composed_delta

    steps = Steps(
        noise,
        float(client.rate[0]),
        int(client.steps[0]),
        "fixed" if client.pair == "fixed" else "poisson",
    )
    delta = composed_delta(
        (steps,),
        "zero-out" if client.pair in ("remove", "add") else "replace-one",
        float(client.epsilon[0]),
        TOLERANCE,
        math.exp(float(client.log_delta[0])),
    )
    return (math.log(delta) if delta > 0 else -800.0) - float(client.log_delta[0])

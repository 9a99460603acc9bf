# SPDX-License-Identifier: Apache-2.0
"""The smallest noise multiplier of a subsampled composition: start, refine, confirm, fall back.

Everything happens in u = log z, for all clients at once:

1. **Bracket.** z is at least that of a single step and at most that without sampling; both are
   closed forms.
2. **Start** from the saddle-point approximation, which is cheap.
3. **Refine** by the secant method on the contour integral.
4. **Confirm** with a second integral on other, finer grids, a little above the root; for zero-out
   neighbours in both directions.
5. **Fall back** on bounds that are always valid where the confirmation fails or the grids would be
   too large: records that are hardly ever seen. First the Chernoff bound, for all of them at once;
   then, client by client, the pessimistic privacy loss distribution of
   :mod:`dpcohort.accounting.events`, which is slow and nearly exact. They give more noise than
   needed, never less.

Tiny sampling rates (:mod:`dpcohort.accounting.rare_losses`) do not come this way: there the
distribution is quick, and the search (:func:`rare_noise`) starts from the noise of a single loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting.contour import (
    Clients,
    Contour,
    Pair,
    chernoff_log_delta,
    contour_log_delta,
    cumulants,
    place_contour,
    saddle_order,
    saddle_point_log_delta,
)
from dpcohort.accounting.gaussian import gaussian_mu

__all__ = [
    "fallback_noise",
    "find_noise",
    "rare_noise",
]


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
    steps = RareLosses([(pair, int(client.steps[0]))], expected=promised)
    delta = steps.delta(float(client.epsilon[0]))
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
    from dpcohort.accounting.events import TOLERANCE, Event, composed_delta

    steps = Event(
        noise_multiplier=noise,
        sampling_rate=float(client.rate[0]),
        steps=int(client.steps[0]),
        sampler="fixed" if client.pair == "fixed" else "poisson",
        neighbours="zero-out" if client.pair in ("remove", "add") else "replace-one",
    )
    promised = math.exp(float(client.log_delta[0]))
    delta = composed_delta((steps,), float(client.epsilon[0]), TOLERANCE, promised)
    return (math.log(delta) if delta > 0 else -800.0) - float(client.log_delta[0])


# Smoothing may cost this share of z; ten times as much while the root is still far away.
_SMOOTHING_SHARE = 2e-4
_FIRST_SHARE = 2e-3
# A smoothing that turns out to cost this many times its share is chosen again.
_DEAR = 5.0

# A step in log z smaller than this is the last one; the confirmation is made this far above.
_STEP = 5e-5
_ABOVE = 2e-4

# The bracket gives way this much, as the smoothing changes on the way.
_SLACK = 2e-3

# Truncated terms of the integral, relative to the sum.
_TAIL = 1e-5


@dataclass(kw_only=True)
class _State:
    """Where the search of each client stands; everything but ``far_order`` is in log z."""

    log_noise: FloatArray
    low: FloatArray
    high: FloatArray
    slope: FloatArray  # of log delta, negative
    far_order: FloatArray
    smoothing_rate: FloatArray
    smoothing: FloatArray
    points: IntArray


def find_noise(
    clients: Clients, *, low: FloatArray, high: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """The smallest log z for which every client keeps its promise, from a bracket that holds it.

    For the pair ``remove`` the answer also covers ``add``, the other direction of zero-out.

    Args:
        clients: the clients, with sampling rate below 1 and at least one step.
        low: a lower bound of log z.
        high: an upper bound of log z.

    Returns:
        log z, confirmed to be private, and whether the contour integral gave it or a bound did.
    """
    state = _start(clients, low, high)
    solved = _refine(clients, state)
    log_noise = state.log_noise + _ABOVE
    exact = _confirm(clients, state, log_noise, np.flatnonzero(solved))
    if clients.pair == "remove":
        index = np.flatnonzero(exact)
        some = clients.take(index).facing("add")
        worse = index[~_keeps_promise(some, log_noise[index], state.slope[index])]
        if worse.size:
            other = clients.take(worse).facing("add")
            log_noise[worse], exact[worse] = find_noise(
                other, low=log_noise[worse], high=high[worse]
            )
    lost = np.flatnonzero(~exact)
    if lost.size:
        log_noise[lost] = fallback_noise(clients.take(lost), low=low[lost], high=high[lost])
    return np.minimum(log_noise, high), exact


def _start(clients: Clients, low: FloatArray, high: FloatArray) -> _State:
    """The root of the saddle-point approximation."""
    single = gaussian_mu(epsilon=clients.epsilon, delta=np.exp(clients.log_delta))
    order = _gaussian_order(clients.epsilon, single)
    # central limit: T steps at rate r are like one with mu^2 = r^2 T (e^(1/z^2) - 1)
    scale = 2.0 if clients.pair in ("replace", "fixed") else 1.0
    guess = np.log(scale) - 0.5 * np.log(np.log1p(single**2 / (clients.rate**2 * clients.steps)))
    bottom, top = low, high
    low, high = low.copy(), high.copy()
    u = np.clip(guess + 0.02, low + 0.02 * (high - low), high)
    slope = np.full_like(u, np.nan)
    last_u, last_f = np.full_like(u, np.nan), np.full_like(u, np.nan)
    active = np.arange(u.size)
    for _ in range(60):
        some = clients.take(active)
        order[active], at = saddle_order(some, some.shift(u[active]), order[active])
        t = order[active]
        f = saddle_point_log_delta(some, t, at) - some.log_delta
        gaussian_slope = -np.maximum(t * (1.0 + t) * some.steps * at[2], 1.0)
        known = np.where(np.isnan(slope[active]), gaussian_slope, slope[active])
        slope[active] = _secant(u[active], f, last_u[active], last_f[active], known, least=2e-3)
        last_u[active], last_f[active] = u[active], f
        moved = _next(u, f, slope, low, high, active, slack=0.0)
        active = active[moved > 3e-3]
        if active.size == 0:
            break
    return _State(
        log_noise=u,
        low=bottom - 1e-3,
        high=top + 1e-3,
        slope=np.clip(slope, -60.0, -2.0),
        far_order=2.0 * order,
        smoothing_rate=0.5 * order * (1.0 + order),
        smoothing=np.zeros_like(u),
        points=np.zeros(u.size, dtype=np.int64),
    )


def _gaussian_order(epsilon: FloatArray, mu: FloatArray) -> FloatArray:
    """The saddle of a plain Gaussian mechanism, from which Newton's method starts."""
    centre = epsilon / mu**2 - 0.5
    return np.maximum(0.5 * (centre + np.sqrt(centre**2 + 8.0 / mu**2)), 1e-3)


def _secant(
    u: FloatArray,
    f: FloatArray,
    last_u: FloatArray,
    last_f: FloatArray,
    known: FloatArray,
    *,
    least: float,
) -> FloatArray:
    """The slope between two evaluations, or the known one where they are too close to tell."""
    moved = u - last_u
    usable = np.abs(moved) > least  # False where there is no last evaluation
    slope = known.copy()
    slope[usable] = (f[usable] - last_f[usable]) / moved[usable]
    return np.where((slope < -0.3) & (slope > -300.0), slope, known)


def _next(
    u: FloatArray,
    f: FloatArray,
    slope: FloatArray,
    low: FloatArray,
    high: FloatArray,
    active: IntArray,
    *,
    slack: float,
) -> FloatArray:
    """Tighten the bracket, move u by a secant step inside it, and say how far it moved."""
    here = u[active]
    low[active] = np.where(f > 0, np.maximum(low[active], here - slack), low[active])
    high[active] = np.where(f <= 0, np.minimum(high[active], here + slack), high[active])
    step = np.clip(-f / slope[active], -0.5, 0.5)
    there = here + step
    outside = (there < low[active]) | (there > high[active])
    outside &= np.abs(step) > _STEP
    there = np.where(outside, 0.5 * (low[active] + high[active]), there)
    u[active] = there
    return np.abs(there - here)


def _refine(clients: Clients, state: _State) -> BoolArray:
    """Secant steps on the contour integral; says for which clients they converged.

    Far from the root a coarse smoothing is good enough, and its price is deducted; from the first
    small step on it is the final one, and stays.
    """
    solved, near, final = (np.zeros(clients.size, dtype=np.bool_) for _ in range(3))
    last_u, last_f = np.full(clients.size, np.nan), np.full(clients.size, np.nan)
    active = np.arange(clients.size)
    for _ in range(20):
        some = clients.take(active)
        mu = some.shift(state.log_noise[active])
        contour = place_contour(some, mu, state.far_order[active])
        state.far_order[active] = contour.far_order
        share = np.where(near[active], _SMOOTHING_SHARE, _FIRST_SHARE)
        fresh = share * -state.slope[active] / state.smoothing_rate[active]
        state.smoothing[active] = np.where(final[active], state.smoothing[active], fresh)
        final[active] |= near[active]
        f = _integral(some, mu, contour, state, active) - some.log_delta
        price = state.smoothing_rate[active] * state.smoothing[active]
        f = np.where(final[active], f, f - price - _SMOOTHING_SHARE * state.slope[active])
        finite = np.isfinite(f)
        active, f = active[finite], f[finite]
        here = state.log_noise[active]
        state.slope[active] = _secant(
            here, f, last_u[active], last_f[active], state.slope[active], least=1e-3
        )
        last_u[active], last_f[active] = here, f
        moved = _next(state.log_noise, f, state.slope, state.low, state.high, active, slack=_SLACK)
        near[active] |= moved < 0.02
        solved[active] = final[active] & (moved <= _STEP)
        # Chosen far from the root, a smoothing can cost much more there: choose it again.
        cost = state.smoothing_rate[active] * state.smoothing[active] / -state.slope[active]
        dear = active[solved[active] & (cost > _DEAR * _SMOOTHING_SHARE)]
        solved[dear] = final[dear] = False
        active = active[~solved[active]]
        if active.size == 0:
            break
    return solved


def _integral(
    clients: Clients, mu: FloatArray, contour: Contour, state: _State, index: IntArray
) -> FloatArray:
    """Log delta with as many points as the tail needs; the number is remembered."""
    width = np.sqrt(state.smoothing[index])
    # at this many points smoothing alone has brought the terms to e^-72
    enough = np.maximum(np.ceil(12.0 / (width * contour.step)), 8.0)
    unknown = state.points[index] == 0
    points = state.points[index].astype(np.float64)
    if unknown.any():
        at = cumulants(clients.take(np.flatnonzero(unknown)), mu[unknown], contour.order[unknown])
        spread = np.sqrt(clients.steps[unknown] * at[2]) + 1e-150
        points[unknown] = 6.0 / (spread * contour.step[unknown])
    points = np.clip(np.ceil(points), 8.0, np.minimum(enough, 1e7))
    log_delta = np.full(clients.size, np.nan)
    todo = np.arange(clients.size)
    while todo.size:
        found, rate, tail = contour_log_delta(
            clients.take(todo),
            mu[todo],
            contour.take(todo),
            points=_rounded(points[todo]),
            smoothing=state.smoothing[index[todo]],
        )
        good = tail <= _TAIL
        log_delta[todo[good]] = found[good]
        known = good & (rate > 1e-6)
        state.smoothing_rate[index[todo[known]]] = rate[known]
        # NaN: over the cost limit; more points will not help
        more = ~good & (points[todo] < enough[todo]) & np.isfinite(tail)
        todo = todo[more]
        points[todo] = np.minimum(2.0 * points[todo], enough[todo])
    state.points[index] = points.astype(np.int64)
    return log_delta


def _rounded(points: FloatArray) -> IntArray:
    """Rows times columns of the matrix product that computes this many points."""
    rows = np.ceil(np.sqrt(points))
    return np.asarray(rows * np.ceil(points / rows), dtype=np.int64)


def _confirm(clients: Clients, state: _State, log_noise: FloatArray, index: IntArray) -> BoolArray:
    """Whether delta is within the promise on a second set of grids, all of them finer.

    Where it is not by little, ``log_noise`` is raised by what is missing and looked at again.
    """
    confirmed = np.zeros(clients.size, dtype=np.bool_)
    for _ in range(3):
        some = clients.take(index)
        mu = some.shift(log_noise[index])
        placed = place_contour(some, mu, state.far_order[index])
        found, _, tail = contour_log_delta(
            some,
            mu,
            replace(placed, step=0.8 * placed.step),
            points=_rounded(1.5 * state.points[index].astype(np.float64)),
            smoothing=state.smoothing[index],
            fineness=1.2,
            shift=0.5,
        )
        log_delta = np.where(tail <= 10 * _TAIL, found, np.inf)
        confirmed[index] = log_delta <= some.log_delta
        missing = (log_delta - some.log_delta) / -state.slope[index]
        again = ~confirmed[index] & (missing < 1e-3)
        log_noise[index[again]] += missing[again] + 0.5 * _ABOVE
        index = index[again]
        if index.size == 0:
            break
    return confirmed


def _keeps_promise(clients: Clients, log_noise: FloatArray, slope: FloatArray) -> BoolArray:
    """Whether the pair ``add``, at noise found for ``remove``, is within the promise too."""
    # a step removes at most log(1/(1-r)) this way round, so delta is 0 from T times that on
    keeps = clients.epsilon >= -clients.steps * np.log1p(-clients.rate)
    index = np.flatnonzero(~keeps)
    some = clients.take(index)
    mu = some.shift(log_noise[index])
    single = gaussian_mu(epsilon=some.epsilon, delta=np.exp(some.log_delta))
    order, at = saddle_order(some, mu, _gaussian_order(some.epsilon, single))
    bounded = chernoff_log_delta(some, order, at) <= some.log_delta
    keeps[index] = bounded
    index, order = index[~bounded], order[~bounded]
    some, mu = clients.take(index), mu[~bounded]
    contour = place_contour(some, mu, 2.0 * order)
    rate = 0.5 * order * (1.0 + order)
    state = _State(
        log_noise=log_noise[index],
        low=log_noise[index],
        high=log_noise[index],
        slope=slope[index],
        far_order=contour.far_order,
        smoothing_rate=rate,
        smoothing=_SMOOTHING_SHARE * -slope[index] / rate,
        points=np.zeros(index.size, dtype=np.int64),
    )
    log_delta = _integral(some, mu, contour, state, np.arange(index.size))
    keeps[index] = log_delta <= some.log_delta  # False for NaN
    return keeps

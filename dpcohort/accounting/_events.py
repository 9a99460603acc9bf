# SPDX-License-Identifier: Apache-2.0
"""What noisy steps spend: an event of equal steps, a history, what still fits, the certificate.

Certified ε and δ come from a privacy loss distribution (PLD) of our own. Every number returned is
an upper bound: nothing is dropped that could make it larger, rounding included. The method shares
no code and no formula with the calibrator (contour integrals), so each checks the other. One step's
dominating pairs and their composition are in :mod:`.composition`; without subsampling
(r = 1) the Gaussian mechanism's closed form is used. At tiny rates the composition is that of
:mod:`.rare_losses`, which the calibrator uses there too.

Steps with different noise, rate or sampler compose as the sum of their privacy losses. This is
how a plan is made again after drop-outs: a client that took part less often than planned may use
what is left with less noise.

The totals hold when the parameters of every event were chosen without looking at the private
data, e.g. because other clients dropped out. They do not hold when parameters are chosen
adaptively from earlier outputs: then a privacy filter is needed, and the obvious one (stop when
the composed profile is used up) is not valid in general (arXiv 2602.06756). Stopping early, or
skipping planned steps, is always fine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from dpcohort._validate import FloatArray, choice, float_array, number, whole_number
from dpcohort.accounting._closed_forms import gaussian_delta
from dpcohort.accounting._composition import (
    TINY_RATE,
    Loss,
    LossPair,
    Parts,
    at_delta,
    grid_delta,
    grid_epsilon,
    grid_for,
    largest_sum,
    sketch_of,
)
from dpcohort.accounting._contract import (
    MOST_STEPS,
    broadcast_fields,
    float_or_array,
    whole_steps,
)
from dpcohort.accounting._rare_losses import (
    PairParts,
    rare_delta,
    rare_epsilon,
    rarely_exceeds,
)
from dpcohort.accounting._sampler import SENSITIVITY, Neighbours, Sampler
from dpcohort.accounting._samplers import sampler_of
from dpcohort.errors import BudgetExceededError, InputError

#: About how much of ε may be lost to the grid.
TOLERANCE = 1e-4
_CLEARLY = 1.05  # an ε so many times all losses of a direction together needs no grid
_COARSE = 10  # the direction that is hardly ever the worse one is first tried on a coarser grid
_LARGEST_SHIFT = 50.0
_SMALLEST_SHIFT = 1e-9
_SMALLEST_RATE = 1e-9
_LARGEST_RATE = 1 - 1e-9
_LARGEST_EPSILON = 1e15  # of sampled steps: δ at a larger one is bounded by δ here
_LARGEST_MU = 1e5  # of a closed form; beyond, the tail of the loss bounds δ as closely
# Accounting that fails proves nothing, and says so: after a run it must not stop the receipts.
_NO_NUMBER = (ArithmeticError, ValueError)

_MOST_FURTHER_STEPS = 10**9
_NOISE_ACCURACY = 1e-5
_ACCURACY = 2e-4  # of log z, where a search near a good guess stops
_TRIALS = 6


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One independent use of a client's records: Gaussian noise on sums over sampled batches.

    Its sampler says which steps are one use and what their privacy losses are.

    Attributes:
        noise_multiplier: z > 0, noise on the clipped sum in units of the clip.
        sampling_rate: r in (0, 1].
        sampler: how its batches are drawn.
        neighbours: the neighbouring relation that its losses are about.

    Example:
        >>> step = Event.of(noise_multiplier=1.5, sampling_rate=0.2, steps=100).mechanism
        >>> step.steps, [loss.kind for loss in step.losses()]
        (1, ['remove', 'add'])
    """

    noise_multiplier: float
    sampling_rate: float
    sampler: Sampler
    neighbours: Neighbours

    @property
    def steps(self) -> int:
        """Noisy steps of one use."""
        return self.sampler.local_steps

    def losses(self) -> tuple[Loss, ...]:
        """Privacy losses of one use that dominate every other, one for each order of neighbours."""
        return self.sampler.losses(self.noise_multiplier, self.sampling_rate, self.neighbours)

    @property
    def sort_key(self) -> tuple[float, float, str, int]:
        """An order of mechanisms under one neighbouring relation."""
        return self.noise_multiplier, self.sampling_rate, self.sampler.name, self.steps


@dataclass(frozen=True)
class Event:
    """A mechanism, and how many times one client took part in it.

    Attributes:
        mechanism: what was done each time.
        count: how many times.

    Example:
        >>> event = Event.of(noise_multiplier=1.5, sampling_rate=0.2, steps=100)
        >>> event.neighbours, event.count
        ('zero-out', 100)
    """

    mechanism: Mechanism
    count: int

    @classmethod
    def of(
        cls,
        *,
        noise_multiplier: float,
        sampling_rate: float,
        steps: int,
        sampler: str | Sampler = "poisson",
        neighbours: str | None = None,
    ) -> Event:
        """So many equal noisy steps, their numbers checked.

        Args:
            noise_multiplier: z > 0.
            sampling_rate: r in (0, 1].
            steps: how many steps, over all uses.
            sampler: name of the sampler, or the sampler.
            neighbours: ``zero-out`` or ``replace-one``; by default the sampler's own.
        """
        drawn_by = sampler_of(sampler)
        mechanism = Mechanism(
            noise_multiplier=number("noise_multiplier", noise_multiplier, above=0),
            sampling_rate=number("sampling_rate", sampling_rate, above=0, at_most=1),
            sampler=drawn_by,
            neighbours=drawn_by.neighbours(neighbours),
        )
        total = whole_number("steps", steps, at_least=0, at_most=MOST_STEPS)
        mechanism.losses()  # refuses numbers that are not the sampler's
        return cls(mechanism, drawn_by.uses(total))

    @property
    def steps(self) -> int:
        """Number of noisy steps."""
        return self.count * self.mechanism.steps

    @property
    def neighbours(self) -> Neighbours:
        """The neighbouring relation that its losses are about."""
        return self.mechanism.neighbours

    def changed(self, **changes: Any) -> Event:
        """The same with other numbers of its mechanism."""
        return replace(self, mechanism=replace(self.mechanism, **changes))

    def to_dict(self) -> dict[str, Any]:
        """The event as plain JSON values; local steps only where several are one use."""
        mechanism = self.mechanism
        plain = {
            "noise_multiplier": mechanism.noise_multiplier,
            "sampling_rate": mechanism.sampling_rate,
            "steps": self.steps,
            "sampler": mechanism.sampler.name,
            "neighbours": mechanism.neighbours,
        }
        return plain | ({"local_steps": mechanism.steps} if mechanism.steps > 1 else {})

    @classmethod
    def from_dict(cls, values: Any) -> Event:
        """The event from :meth:`to_dict`; unknown and missing keys are refused."""
        names = ["noise_multiplier", "sampling_rate", "steps", "sampler", "neighbours"]
        if not isinstance(values, Mapping):
            allowed = "a mapping with keys " + ", ".join(names)
            raise InputError("history", given=values, allowed=allowed)
        for key in values:
            choice("key", key, [*names, "local_steps"])
        for key in names[:3]:
            if key not in values:
                raise InputError("key", given=None, allowed=f"{key!r}, which is missing")
        numbers = dict(values)
        local_steps = whole_number("local_steps", numbers.pop("local_steps", 1), at_least=1)
        sampler = sampler_of(numbers.pop("sampler", "poisson")).over(local_steps)
        return cls.of(**numbers, sampler=sampler)


@dataclass(frozen=True)
class History:
    """All events of one client, in order; the total does not depend on the order.

    Attributes:
        events: what was done, oldest first.

    Example:
        >>> half = Event.of(noise_multiplier=1.5, sampling_rate=0.2, steps=50)
        >>> history = History().append(half).append(half)
        >>> round(history.epsilon(1e-5), 2)
        7.55
    """

    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(event, Event) for event in self.events):
            raise InputError("events", given=self.events, allowed="a sequence of Event")
        object.__setattr__(self, "events", tuple(self.events))

    def append(self, event: Event) -> History:
        """A new history with one more event."""
        return History((*self.events, event))

    @property
    def steps(self) -> int:
        """Number of noisy steps so far."""
        return sum(event.steps for event in self.events)

    @property
    def neighbours(self) -> Neighbours:
        """The neighbouring relation of all events; a mixture has none and is refused."""
        relations = {event.neighbours for event in self.events}
        if len(relations) > 1:
            raise InputError(
                "neighbours",
                given=sorted(relations),
                allowed="the same in all events of a history",
                next_step="A zero-out guarantee says nothing about replacing a record. "
                "history.promoted() counts every event under replace-one, the stronger relation.",
            )
        return relations.pop() if relations else "zero-out"

    def promoted(self) -> History:
        """The same events, all counted under replace-one (which also covers zero-out).

        The noise stays what it was, so the epsilon gets larger: replacing a record moves the
        clipped sum by up to 2C, zeroing it out by up to C.
        """
        return History(tuple(event.changed(neighbours="replace-one") for event in self.events))

    def epsilon(self, delta: float) -> float:
        """An upper bound on the ε spent so far, at this δ."""
        delta = number("delta", delta, above=0, below=1)
        return composed_epsilon(self._sorted(), delta)

    def delta(self, epsilon: float) -> float:
        """An upper bound on the δ spent so far, at this ε."""
        epsilon = number("epsilon", epsilon, at_least=0)
        return composed_delta(self._sorted(), epsilon)

    def _sorted(self) -> tuple[Event, ...]:
        """The events in an order of their own, so that equal totals are computed equally."""
        _ = self.neighbours  # a mixture has no total

        def order(event: Event) -> tuple[Any, ...]:
            noise, rate, *sampler = event.mechanism.sort_key
            return noise, rate, event.steps, *sampler

        return tuple(sorted(self.events, key=order))


def calibrate_remaining(
    history: History,
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    sampler: str | Sampler = "poisson",
    neighbours: str | None = None,
    largest_noise_multiplier: float = 1e6,
) -> float:
    """The smallest noise multiplier for further steps that keeps the total within (ε, δ).

    Valid when the new parameters do not depend on the private data or on earlier outputs
    (drop-outs, a changed timetable); see the head of this module.

    Args:
        history: what the client has spent.
        epsilon: the client's ε for everything, past and future.
        delta: the client's δ for everything.
        sampling_rate: r of the further steps.
        steps: number of further steps.
        sampler: sampler of the further steps.
        neighbours: neighbouring relation; must be that of the history.
        largest_noise_multiplier: more noise than this counts as out of reach.

    Returns:
        z, at most 0.01 % above the smallest that certifies; 0 if no step is left to take.

    Raises:
        BudgetExceededError: if the budget is spent, or if it would take more noise than
            ``largest_noise_multiplier``; the message says how many steps still fit.

    Example:
        >>> past = History().append(Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=50))
        >>> z = calibrate_remaining(past, epsilon=2.0, delta=1e-5, sampling_rate=0.1, steps=50)
        >>> more = Event.of(noise_multiplier=z, sampling_rate=0.1, steps=50)
        >>> past.append(more).epsilon(1e-5) <= 2.0
        True
    """
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    steps = whole_number("steps", steps, at_least=0, at_most=_MOST_FURTHER_STEPS)
    largest = number("largest_noise_multiplier", largest_noise_multiplier, above=0)
    spent = history.delta(epsilon)
    if spent > delta:
        raise BudgetExceededError(
            f"The client has already spent epsilon = {history.epsilon(delta):.6g} at delta = "
            f"{delta:g} in {history.steps} steps, and promised {epsilon:g}: 0 steps still fit."
        )
    if steps == 0:
        return 0.0

    rest: Any = {"sampling_rate": sampling_rate, "sampler": sampler, "neighbours": neighbours}
    more = Event.of(noise_multiplier=largest, steps=steps, **rest)

    def excess(log_noise: float) -> float:
        return excess_delta(history, more, math.exp(log_noise), epsilon=epsilon, delta=delta)

    if excess(math.log(largest)) > 0:
        fit = affordable_steps(
            history, epsilon=epsilon, delta=delta, noise_multiplier=largest, at_most=steps, **rest
        )
        raise BudgetExceededError(
            f"{steps} further steps do not fit: the client has spent epsilon = "
            f"{history.epsilon(delta):.6g} of {epsilon:g} at delta = {delta:g}, and even at noise "
            f"multiplier {largest:g} only {fit} steps still fit."
        )
    # Where the excess, which falls, becomes ≤ 0, from the right.
    most = math.log(largest)
    high = min(0.0, most)
    while high < most and excess(high) > 0:
        high = min(high + 1.5, most)
    low = high - 1.5
    while excess(low) <= 0:
        low, high = low - 1.5, low
    root = float(brentq(excess, low, high, xtol=_NOISE_ACCURACY))
    margin = _NOISE_ACCURACY
    while excess(root) > 0:
        root, margin = min(root + margin, high), 2 * margin
    return math.exp(root)


def excess_delta(
    history: History, more: Event, noise_multiplier: float, *, epsilon: float, delta: float
) -> float:
    """How far ln δ of a history and one more event is above that of a promise.

    Args:
        history: what the client has spent.
        more: the event; its noise does not matter.
        noise_multiplier: z of the event.
        epsilon: the client's ε for everything.
        delta: the client's δ for everything.

    Example:
        >>> steps = Event.of(noise_multiplier=1.0, sampling_rate=0.1, steps=50)
        >>> excess_delta(History(), steps, 9.0, epsilon=1.0, delta=1e-5) < 0
        True
    """
    total = history.append(more.changed(noise_multiplier=noise_multiplier)).delta(epsilon)
    return math.log(max(total, 1e-300)) - math.log(delta)


def root_near(excess: Callable[[float], float], guess: float) -> float | None:
    """About the smallest z that keeps a budget: a secant search in log z from a good guess.

    What it gives is to be certified afterwards, so a poor answer costs a little noise and no
    privacy; None where it finds none.

    Args:
        excess: of ln δ at log z, as :func:`excess_delta` has it.
        guess: of log z.
    """
    before, at = guess, excess(guess)
    x = before + (0.01 if at > 0 else -0.01)
    for _ in range(_TRIALS):
        now = excess(x)
        if now == at:
            return None
        step = -now * (x - before) / (now - at)
        before, at = x, now
        x += min(0.5, max(-0.5, step))
        if abs(step) < _ACCURACY:
            return math.exp(x + _ACCURACY / 2)
    return None


def affordable_steps(
    history: History,
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sampling_rate: float,
    sampler: str | Sampler = "poisson",
    neighbours: str | None = None,
    at_most: int = _MOST_FURTHER_STEPS,
) -> int:
    """How many more steps at this noise keep the total within (ε, δ).

    Valid when the new parameters do not depend on the private data or on earlier outputs; see
    the head of this module.

    Args:
        history: what the client has spent.
        epsilon: the client's ε for everything, past and future.
        delta: the client's δ for everything.
        noise_multiplier: z of the further steps.
        sampling_rate: r of the further steps.
        sampler: sampler of the further steps.
        neighbours: neighbouring relation; must be that of the history.
        at_most: where to stop counting.

    Example:
        >>> past = History().append(Event.of(noise_multiplier=1.5, sampling_rate=0.2, steps=60))
        >>> affordable_steps(past, epsilon=7.56, delta=1e-5, noise_multiplier=1.5,
        ...                  sampling_rate=0.2)
        40
    """
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    at_most = whole_number("at_most", at_most, at_least=0, at_most=_MOST_FURTHER_STEPS)
    none = Event.of(
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=0,
        sampler=sampler,
        neighbours=neighbours,
    )
    each = none.mechanism.steps
    most = at_most // each

    def fits(count: int) -> bool:
        return history.append(replace(none, count=count)).delta(epsilon) <= delta

    if not fits(0):
        return 0
    good, bad = 0, 1
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good * each


@lru_cache(maxsize=1 << 16)
def composed_delta(
    events: tuple[Event, ...], epsilon: float, tolerance: float = TOLERANCE, expected: float = 1e-7
) -> float:
    """An upper bound on δ at this ε after all of these events, whatever their order.

    They must have one neighbouring relation. It is quicker and, where δ is much smaller, looser if
    told about which δ is ``expected``.

    Example:
        >>> half = Event.of(noise_multiplier=8.0, sampling_rate=0.2, steps=50)
        >>> composed_delta((half, half), 1.0) == composed_delta((replace(half, count=100),), 1.0)
        True
    """
    if epsilon == math.inf:
        return 0.0
    case = _simplify(events)
    if isinstance(case, float):
        if case == 0:
            return 0.0
        return gaussian_delta(epsilon=epsilon, mu=case) if case < math.inf else 1.0

    epsilon = min(epsilon, _LARGEST_EPSILON)

    def value(parts: Parts, trial: float) -> float:
        if _is_tiny(parts):
            return rare_delta(parts, epsilon, coarseness=trial / TOLERANCE, expected=expected)
        return grid_delta(parts, epsilon, tolerance=trial)

    try:
        worst = _worst(case, tolerance, value, lambda worst: (epsilon, worst))
    except _NO_NUMBER:
        worst = 1.0
    return min(worst, _plain_delta(case))


@lru_cache(maxsize=1 << 16)
def composed_epsilon(
    events: tuple[Event, ...], delta: float, tolerance: float = TOLERANCE
) -> float:
    """An upper bound on ε at this δ after all of these events, whatever their order.

    Example:
        >>> composed_epsilon((), 1e-5)
        0.0
    """
    case = _simplify(events)
    if isinstance(case, float):
        return gaussian_epsilon(case, delta)
    if _plain_delta(case) <= delta:
        return 0.0

    def value(parts: Parts, trial: float) -> float:
        if _is_tiny(parts):
            return rare_epsilon(parts, delta, coarseness=trial / TOLERANCE)
        return grid_epsilon(parts, delta, tolerance=trial)

    try:
        return _worst(case, tolerance, value, lambda worst: (worst, delta))
    except _NO_NUMBER:
        return math.inf


def _is_tiny(parts: Parts) -> TypeGuard[PairParts]:
    return all(loss.is_tiny for loss, _ in parts)


def _worst(
    directions: Sequence[Parts],
    tolerance: float,
    value: Callable[[Parts, float], float],
    promise: Callable[[float], tuple[float, float]],
) -> float:
    """The value in the worse direction of neighbours.

    A direction that is seen not to be the worse one, by a quick bound or on a coarser grid, is done
    with.

    Args:
        directions: the steps in each direction.
        tolerance: about how much of ε may be lost to the grid.
        value: of steps, at a tolerance.
        promise: the (ε, δ) that a direction keeps if it is no worse than a value.
    """
    worst = 0.0
    for parts in directions:
        if worst > 0:
            epsilon, delta = promise(worst)
            if epsilon > _CLEARLY * largest_sum(parts):
                continue
            if _is_tiny(parts) and rarely_exceeds(parts, epsilon=epsilon, delta=delta):
                continue
        for trial in (_COARSE * tolerance, tolerance) if worst > 0 else (tolerance,):
            found = value(parts, trial)
            if found <= worst:
                break
        worst = max(worst, found)
    return worst


def _plain_delta(directions: Sequence[Parts]) -> float:
    """δ(0) by adding up: one step is (0, δ₁)-DP with δ₁ the distance of its pair."""
    distances = [[(loss.distance, n) for loss, n in parts] for parts in directions]
    if any(distance == 1 for parts in distances for distance, _ in parts):
        return 1.0
    return max(-math.expm1(sum(n * math.log1p(-d) for d, n in parts)) for parts in distances)


def _simplify(events: Sequence[Event]) -> float | list[list[tuple[Loss, int]]]:
    """The events as one Gaussian mechanism (its µ), or as the parts of each direction.

    Parameters beyond what the grid resolves are replaced by worse ones: less noise, a higher
    rate; sampling is ignored where the noise is so small that it hides nothing.
    """
    squared = 0.0  # Σ n/z² of the uses without subsampling
    counts: dict[tuple[float, float, str, int], int] = {}
    samplers: dict[tuple[str, int], Sampler] = {}
    for event in events:
        if event.count == 0:
            continue
        noise, rate, name, together = event.mechanism.sort_key
        shift = 1 / noise if noise > 1e-150 else math.inf
        if rate > _LARGEST_RATE or shift > _LARGEST_SHIFT:
            squared += event.count * shift**2  # a record is in one sum of a use, if in any
            continue
        key = (max(shift, _SMALLEST_SHIFT), max(rate, _SMALLEST_RATE), name, together)
        counts[key] = counts.get(key, 0) + event.count
        samplers[name, together] = event.mechanism.sampler
    neighbours = events[0].neighbours if events else "zero-out"
    sensitivity = SENSITIVITY[neighbours]
    if not counts or squared > _LARGEST_SHIFT**2:
        for (shift, *_), count in counts.items():
            squared += count * shift**2
        return sensitivity * math.sqrt(squared)
    directions: list[list[tuple[Loss, int]]] = []
    for (shift, rate, name, together), count in sorted(counts.items()):
        losses = samplers[name, together].losses(1 / shift, rate, neighbours)
        directions = directions or [[] for _ in losses]
        for parts, loss in zip(directions, losses, strict=True):
            parts.append((loss, count))
    if squared > 0:
        gaussian = LossPair(kind="remove", shift=sensitivity * math.sqrt(squared), rate=1.0)
        for parts in directions:
            parts.append((gaussian, 1))
    return directions


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε; µ) ≤ δ, rounded up.

    Example:
        >>> round(gaussian_epsilon(0.268051, 1e-5), 4)
        1.0
    """
    if mu > 1e150:
        return math.inf
    if mu == 0 or gaussian_delta(epsilon=0.0, mu=mu) <= delta:
        return 0.0
    # P(loss > ε) bounds δ, and the loss is N(µ²/2, µ²).
    high = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)) + 1)
    if mu > _LARGEST_MU:
        return high

    def excess(epsilon: float) -> float:
        return float(gaussian_delta(epsilon=epsilon, mu=mu)) - delta

    margin = 1e-12 * high
    root = float(brentq(excess, 0.0, high, xtol=margin, rtol=1e-14))
    while excess(root) > 0:
        root += margin
        margin *= 2
    return root


# The certificate: what a deployed (noise multiplier, rate, steps) really spends.
#
# Two independent pessimistic computations are offered. ``pld`` is our own
# (above); it covers every sampler and counts its own rounding errors.
# ``dp-accounting`` is Google's library; it covers Poisson sampling. ``auto`` asks the library where
# it is sound and us elsewhere: fixed batches, tiny sampling rates, and targets of δ that are so
# small against the number of steps that the rounding noise of the library's transform, which it
# does not count, would show.


Method = Literal["auto", "pld", "dp-accounting"]

_MOST_POINTS = 2e6
# The library's transform leaves noise of about 1e-13 per step in δ: stay 10,000 times above it.
_LEAST_DELTA_PER_STEP = 1e-9
# It raises the number of its points to the power of the steps, as a whole number.
_MOST_LIBRARY_STEPS = 10**6
_LARGEST_NOISE = 1e6
# Its grid masses are second differences of δ, which cancel on a finer grid.
_FINEST_GRID = 1e-6


def certify_epsilon(
    *,
    noise_multiplier: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str | Sampler = "poisson",
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
        return _library_epsilon((event,), target, method)

    target = float_array("delta", delta, above=0, below=1)
    spent_by, contract = (noise_multiplier, sampling_rate, steps), (sampler, neighbours, method)
    return _certified(answer, spent_by, contract, without_noise=math.inf, delta=target)


def certify_delta(
    *,
    noise_multiplier: ArrayLike,
    epsilon: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str | Sampler = "poisson",
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
        try:
            return float(_library((event,), expected).get_delta_for_epsilon(target))
        except _NO_NUMBER:
            return 1.0 if method == "dp-accounting" else expected

    target = float_array("epsilon", epsilon, at_least=0, allow_infinite=True)
    spent_by, contract = (noise_multiplier, sampling_rate, steps), (sampler, neighbours, method)
    return _certified(answer, spent_by, contract, without_noise=1.0, epsilon=target)


def _certified(
    answer: Callable[[Event, float], float],
    spent_by: tuple[ArrayLike, ArrayLike, ArrayLike],
    contract: tuple[str | Sampler, str | None, str],
    *,
    without_noise: float,
    **target: FloatArray,
) -> Any:
    """The answer for every client; equal clients are asked about once.

    Args:
        answer: function of an event and the value asked about.
        spent_by: noise multiplier, sampling rate and steps.
        contract: sampler, neighbours and method.
        without_noise: the answer where there is no noise.
        **target: the one value (``epsilon`` or ``delta``) that the answer is for, already checked.
    """
    sampler, relation, method = sampler_of(contract[0]), contract[1], contract[2]
    sampling: Any = {"sampler": sampler, "neighbours": sampler.neighbours(relation)}
    choice("method", method, get_args(Method))
    if method == "dp-accounting" and not sampler.is_in_library:
        raise InputError(
            "method",
            given=method,
            allowed=f"'auto' or 'pld' when sampler = {sampler.name!r}",
            next_step=f"dp-accounting has no tight bound for {sampler} batches.",
        )
    noise, rate, count = spent_by
    columns = broadcast_fields(
        **target,
        noise_multiplier=float_array("noise_multiplier", noise, at_least=0, allow_infinite=True),
        sampling_rate=float_array("sampling_rate", rate, above=0, at_most=1),
        steps=whole_steps(count),
    )

    @cache
    def one(target: float, z: float, r: float, count: float) -> float:
        if count == 0 or math.inf in (z, target):
            return 0.0
        if z == 0:
            return without_noise
        steps = Event.of(noise_multiplier=z, sampling_rate=r, steps=int(count), **sampling)
        return answer(steps, target)

    rows = zip(*(column.ravel().tolist() for column in columns), strict=True)
    answers = np.array([one(*row) for row in rows]).reshape(columns[0].shape)
    return float_or_array(answers)


def history_epsilon(history: History, delta: float, method: str = "auto") -> float:
    """An upper bound on the ε of a client's whole history, as ``certify_epsilon`` gives of steps.

    Args:
        history: all events of one client.
        delta: in (0, 1).
        method: ``auto`` asks dp-accounting where it is sound, ``pld`` our own composition.

    Example:
        >>> events = (Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=50),
        ...           Event.of(noise_multiplier=20.0, sampling_rate=1.0, steps=10))
        >>> ours, theirs = (history_epsilon(History(events), 1e-5, m) for m in ("pld", "auto"))
        >>> abs(ours / theirs - 1) < 1e-3
        True
    """
    choice("method", method, get_args(Method))
    events = tuple(event for event in history.events if event.steps > 0)
    if method == "pld" or not events or not _library_is_sound(events, delta):
        return history.epsilon(delta)
    return _library_epsilon(events, delta, method)


def _library_epsilon(events: tuple[Event, ...], delta: float, method: str) -> float:
    """The library's ε; ours, or infinity where only the library is asked, where it fails."""
    try:
        return float(_library(events, delta).get_epsilon_for_delta(delta))
    except _NO_NUMBER:
        return math.inf if method == "dp-accounting" else History(events).epsilon(delta)


def _library_is_sound(events: tuple[Event, ...], delta: float) -> bool:
    steps = sum(event.steps for event in events)
    if delta < _LEAST_DELTA_PER_STEP * steps or steps > _MOST_LIBRARY_STEPS:
        return False
    for event in events:
        noise, rate = event.mechanism.noise_multiplier, event.mechanism.sampling_rate
        if not event.mechanism.sampler.is_in_library or rate < TINY_RATE:
            return False  # it has no bound, or one grid for losses of all sizes
        if _LARGEST_RATE < rate < 1:
            return False  # it raises where what is not sampled has no digits left
        if not 1 / _LARGEST_SHIFT <= noise <= _LARGEST_NOISE:
            return False
    spacing, least = _spacing(events, delta)
    return spacing >= max(least, _FINEST_GRID)


def _spacing(events: tuple[Event, ...], delta: float) -> tuple[float, float]:
    """Grid spacing for the library, and the finest one that stays affordable."""
    parts = [(event.mechanism.losses()[0], event.count) for event in events]
    sketch = sketch_of(parts, math.log(delta))
    grid = grid_for(sketch, at_delta(sketch, math.log(delta)), tolerance=TOLERANCE)
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
            event.mechanism.noise_multiplier,
            sampling_prob=event.mechanism.sampling_rate,
            value_discretization_interval=spacing,
            neighboring_relation=relations.REPLACE_SPECIAL if zero_out else relations.REPLACE_ONE,
        ).self_compose(event.count)
        total = part if total is None else total.compose(part)
    return total

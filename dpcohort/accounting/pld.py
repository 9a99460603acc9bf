# SPDX-License-Identifier: Apache-2.0
"""Certified ε and δ of sampled Gaussian steps by a privacy loss distribution (PLD) of our own.

Every number returned is an upper bound: nothing is dropped that could make it larger, rounding
included. The method shares no code and no formula with the calibrator (contour integrals), so
each checks the other. One step's dominating pairs are in :mod:`.pairs`, their composition in
:mod:`.composition`; without subsampling (r = 1) the Gaussian mechanism's closed form is used. At
tiny rates the composition is that of :mod:`.rare_losses`, which the calibrator uses there too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, overload

from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array
from dpcohort.accounting.broadcast import answer_each
from dpcohort.accounting.composition import Composition
from dpcohort.accounting.contract import Neighbours, resolve_neighbours
from dpcohort.accounting.gaussian import gaussian_delta
from dpcohort.accounting.grids import TINY_RATE
from dpcohort.accounting.pairs import LossPair, pairs_of_step

if TYPE_CHECKING:
    from dpcohort.accounting.rare_losses import RareLosses

__all__ = ["Steps", "certified_delta", "certified_epsilon", "composed_delta", "composed_epsilon"]

TOLERANCE = 1e-4
_COARSE = 10  # the direction that is hardly ever the worse one is first tried on a coarser grid
_LARGEST_SHIFT = 50.0
_SMALLEST_SHIFT = 1e-9
_SMALLEST_RATE = 1e-9
_ALMOST_ONE = 1 - 1e-12


class Steps(NamedTuple):
    """A number of equal steps.

    Attributes:
        noise_multiplier: z, noise on the clipped sum in units of the clip.
        sampling_rate: r.
        steps: how many.
        sampler: ``poisson`` or ``fixed``.

    Example:
        >>> Steps(1.5, 0.2, 100, "poisson").steps
        100
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    sampler: str


@overload
def certified_delta(
    *,
    epsilon: float,
    noise_multiplier: float,
    sampling_rate: float,
    steps: float,
    sampler: str = ...,
    neighbours: str | None = ...,
    tolerance: float = ...,
) -> float: ...
@overload
def certified_delta(
    *,
    epsilon: ArrayLike,
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = ...,
    neighbours: str | None = ...,
    tolerance: float = ...,
) -> FloatArray: ...
def certified_delta(
    *,
    epsilon: ArrayLike,
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = "poisson",
    neighbours: str | None = None,
    tolerance: float = TOLERANCE,
) -> float | FloatArray:
    """An upper bound on the δ that these steps spend at this ε.

    Args:
        epsilon: at least 0.
        noise_multiplier: z; 0 gives δ = 1.
        sampling_rate: r in (0, 1].
        steps: how many steps; 0 gives δ = 0.
        sampler: ``poisson`` or ``fixed``.
        neighbours: ``zero-out`` or ``replace-one``; by default the sampler's own.
        tolerance: about how much of ε may be lost to the grid.

    Example:
        >>> delta = certified_delta(epsilon=1.0, noise_multiplier=8.0, sampling_rate=0.2, steps=100)
        >>> 4.34e-6 < delta < 4.35e-6
        True
    """
    relation = resolve_neighbours(sampler, neighbours)
    return answer_each(
        lambda value, z, r, n: composed_delta(
            (Steps(z, r, n, sampler),), relation, value, tolerance
        ),
        epsilon=float_array("epsilon", epsilon, at_least=0, allow_infinite=True),
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
    )


@overload
def certified_epsilon(
    *,
    delta: float,
    noise_multiplier: float,
    sampling_rate: float,
    steps: float,
    sampler: str = ...,
    neighbours: str | None = ...,
    tolerance: float = ...,
) -> float: ...
@overload
def certified_epsilon(
    *,
    delta: ArrayLike,
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = ...,
    neighbours: str | None = ...,
    tolerance: float = ...,
) -> FloatArray: ...
def certified_epsilon(
    *,
    delta: ArrayLike,
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = "poisson",
    neighbours: str | None = None,
    tolerance: float = TOLERANCE,
) -> float | FloatArray:
    """An upper bound on the ε that these steps spend at this δ.

    Args:
        delta: in (0, 1).
        noise_multiplier: z; 0 gives ε = inf.
        sampling_rate: r in (0, 1].
        steps: how many steps; 0 gives ε = 0.
        sampler: ``poisson`` or ``fixed``.
        neighbours: ``zero-out`` or ``replace-one``; by default the sampler's own.
        tolerance: about how much of ε may be lost to the grid.

    Example:
        >>> epsilon = certified_epsilon(delta=1e-5, noise_multiplier=1.5, sampling_rate=0.2,
        ...                             steps=100)
        >>> 7.5537 < epsilon < 7.5547
        True
    """
    relation = resolve_neighbours(sampler, neighbours)
    return answer_each(
        lambda value, z, r, n: composed_epsilon(
            (Steps(z, r, n, sampler),), relation, value, tolerance
        ),
        delta=float_array("delta", delta, above=0, below=1),
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
    )


@lru_cache(maxsize=1 << 16)
def composed_delta(
    history: tuple[Steps, ...],
    neighbours: Neighbours,
    epsilon: float,
    tolerance: float = TOLERANCE,
    expected: float = 1e-7,
) -> float:
    """An upper bound on δ at this ε after all of these steps, whatever their order.

    It is quicker and, where δ is much smaller, looser if told about which δ is ``expected``.

    Example:
        >>> steps = Steps(8.0, 0.2, 50, "poisson")
        >>> composed_delta((steps, steps), "zero-out", 1.0) == composed_delta(
        ...     (Steps(8.0, 0.2, 100, "poisson"),), "zero-out", 1.0)
        True
    """
    case = _simplify(history, neighbours)
    if isinstance(case, float):
        if case == 0 or epsilon == math.inf:
            return 0.0
        return gaussian_delta(epsilon=epsilon, mu=case) if case < math.inf else 1.0
    if epsilon == math.inf:
        return 0.0
    worst = 0.0
    for parts in case:
        if (
            worst > 0
            and _is_tiny(parts)
            and _rare_losses(parts).keeps(epsilon=epsilon, delta=worst)
        ):
            continue
        for trial in _trials(worst, tolerance):
            if _is_tiny(parts):
                found = _rare_losses(parts, trial).delta(epsilon, expected=expected)
            else:
                found = Composition(parts, tolerance=trial).delta(epsilon)
            if found <= worst:
                break
        worst = max(worst, found)
    return min(worst, _plain_delta(case))


@lru_cache(maxsize=1 << 16)
def composed_epsilon(
    history: tuple[Steps, ...],
    neighbours: Neighbours,
    delta: float,
    tolerance: float = TOLERANCE,
) -> float:
    """An upper bound on ε at this δ after all of these steps, whatever their order.

    Example:
        >>> composed_epsilon((), "zero-out", 1e-5)
        0.0
    """
    case = _simplify(history, neighbours)
    if isinstance(case, float):
        return _gaussian_epsilon(case, delta)
    if _plain_delta(case) <= delta:
        return 0.0
    worst = 0.0
    for parts in case:
        if worst > 0 and _is_tiny(parts) and _rare_losses(parts).keeps(epsilon=worst, delta=delta):
            continue
        for trial in _trials(worst, tolerance):
            if _is_tiny(parts):
                found = _rare_losses(parts, trial).epsilon(delta)
            else:
                found = Composition(parts, tolerance=trial).epsilon(delta)
            if found <= worst:
                break
        worst = max(worst, found)
    return worst


def _rare_losses(parts: Sequence[tuple[LossPair, int]], tolerance: float = TOLERANCE) -> RareLosses:
    from dpcohort.accounting.rare_losses import RareLosses  # few plans have such rates

    return RareLosses(parts, coarseness=tolerance / TOLERANCE)


def _is_tiny(parts: Sequence[tuple[LossPair, int]]) -> bool:
    return max(pair.rate for pair, _ in parts) < TINY_RATE


def _trials(worst: float, tolerance: float) -> tuple[float, ...]:
    """Tolerances to try in turn until a direction is seen not to be the worse one."""
    return (_COARSE * tolerance, tolerance) if worst > 0 else (tolerance,)


def _plain_delta(directions: Sequence[Sequence[tuple[LossPair, int]]]) -> float:
    """δ(0) by adding up: one step is (0, δ₁)-DP with δ₁ the distance of its pair."""
    return max(
        -math.expm1(sum(n * math.log1p(-min(pair.distance, _ALMOST_ONE)) for pair, n in parts))
        for parts in directions
    )


def _simplify(
    history: Sequence[Steps], neighbours: Neighbours
) -> float | list[list[tuple[LossPair, int]]]:
    """The history as one Gaussian mechanism (its µ), or as the parts of each direction.

    Parameters beyond what the grid resolves are replaced by worse ones: less noise, a higher
    rate; sampling is ignored where the noise is so small that it hides nothing.
    """
    squared = 0.0  # Σ n/z² of the steps without subsampling
    counts: dict[tuple[float, float, str], int] = {}
    for noise, rate, steps, sampler in history:
        if steps == 0 or noise == math.inf:
            continue
        shift = 1 / noise if noise > 1e-150 else math.inf
        if rate == 1 or shift > _LARGEST_SHIFT:
            squared += steps * shift**2
            continue
        key = (max(shift, _SMALLEST_SHIFT), max(rate, _SMALLEST_RATE), sampler)
        counts[key] = counts.get(key, 0) + steps
    sensitivity = 1.0 if neighbours == "zero-out" else 2.0
    if not counts or squared > _LARGEST_SHIFT**2:
        for (shift, _, _), steps in counts.items():
            squared += steps * shift**2
        return sensitivity * math.sqrt(squared)
    directions: list[list[tuple[LossPair, int]]] = []
    for (shift, rate, sampler), steps in sorted(counts.items()):
        pairs = pairs_of_step(
            noise_multiplier=1 / shift,
            sampling_rate=rate,
            sampler=sampler,
            neighbours=neighbours,
        )
        directions = directions or [[] for _ in pairs]
        for parts, pair in zip(directions, pairs, strict=True):
            parts.append((pair, steps))
    if squared > 0:
        gaussian = LossPair(kind="remove", shift=sensitivity * math.sqrt(squared), rate=1.0)
        for parts in directions:
            parts.append((gaussian, 1))
    return directions


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε; µ) ≤ δ, rounded up."""
    if mu > 1e150:
        return math.inf
    if mu == 0 or gaussian_delta(epsilon=0.0, mu=mu) <= delta:
        return 0.0
    from scipy.optimize import brentq  # a tenth of a second to import, and rarely needed

    # P(loss > ε) bounds δ, and the loss is N(µ²/2, µ²).
    high = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)) + 1)
    root = float(
        brentq(
            lambda epsilon: gaussian_delta(epsilon=epsilon, mu=mu) - delta,
            0.0,
            high,
            xtol=1e-12 * high,
            rtol=1e-14,
        )
    )
    margin = 1e-12 * high
    while gaussian_delta(epsilon=root, mu=mu) > delta:
        root += margin
        margin *= 2
    return root

# SPDX-License-Identifier: Apache-2.0
"""Distributions of positive numbers: budgets and sizes of simulated clients, and the paper's.

What is not above 0 (or is below a stated minimum) is discarded and drawn again, as the paper does
with the negative values of its Gaussian mixtures. Nothing is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, IntArray, float_array, number, whole_number
from dpcohort.clients._columns import MAX_SIZE
from dpcohort.errors import InputError

# A distribution that keeps fewer of its draws than this is a mistake, and slow to draw from.
_LEAST_KEPT = 0.01
# With 1 % kept, the chance that one value needs more tries than this is below 1e-43.
_MOST_TRIES = 10_000


#: Draws so many independent positive numbers.
Distribution = Callable[[int, np.random.Generator], FloatArray]


def fixed(value: float) -> Distribution:
    """The same value for everyone.

    Example:
        >>> fixed(2.0)(3, np.random.default_rng(0))
        array([2., 2., 2.])
    """
    number("value", value, above=0)
    return lambda count, rng: np.full(_count(count), float(value))


def uniform(low: float, high: float, minimum: float | None = None) -> Distribution:
    """U(low, high); 0 itself is never drawn.

    U(0, 1), the paper's budgets, now and then gives a client an epsilon near 0 whose noise makes
    it useless. That is left as it is unless ``minimum`` is given.

    Args:
        low: at least 0.
        high: above low.
        minimum: draws below it are discarded and drawn again.

    Example:
        >>> draws = uniform(0, 1, minimum=0.1)(1000, np.random.default_rng(0))
        >>> bool(draws.min() >= 0.1), bool(draws.max() < 1)
        (True, True)
    """
    number("low", low, at_least=0)
    number("high", high, above=low)
    if minimum is not None:
        number("minimum", minimum, at_least=0, below=high)
        _check_kept((high - max(low, minimum)) / (high - low), minimum)
    return lambda count, rng: _draw_kept(count, minimum, lambda some: rng.uniform(low, high, some))


def gaussian_mixture(
    components: Sequence[tuple[float, float, float]], minimum: float | None = None
) -> Distribution:
    """A mixture of normal distributions, what is not positive discarded and drawn again.

    Args:
        components: (weight, mean, standard deviation) of each; weights are relative.
        minimum: draws below it are discarded too.

    Example:
        >>> mixture = gaussian_mixture([(0.3, 0.5, 0.2), (0.7, 10, 1)])
        >>> draws = mixture(10_000, np.random.default_rng(0))
        >>> bool(draws.min() > 0), round(float(np.mean(draws < 5)), 2)
        (True, 0.3)
    """
    given = _as_components(components)
    if minimum is not None:
        number("minimum", minimum, at_least=0)
    total = math.fsum(weight for weight, _, _ in given)
    shares = [(weight / total, mean, std) for weight, mean, std in given]
    lowest = minimum or 0.0
    _check_kept(sum(w * _share_above(lowest, mean, std) for w, mean, std in shares), lowest)
    weights, means, stds = (np.array(column) for column in zip(*shares, strict=True))

    def draw(count: int, rng: np.random.Generator) -> FloatArray:
        def some(missing: int) -> FloatArray:
            which = rng.choice(len(weights), size=missing, p=weights)
            return np.asarray(rng.normal(means[which], stds[which]), dtype=np.float64)

        return _draw_kept(count, minimum, some)

    return draw


def choices(values: Sequence[float], weights: Sequence[float] | None = None) -> Distribution:
    """One of a few values, each with its weight.

    Args:
        values: what can be drawn, all above 0.
        weights: relative; equal if not given.

    Example:
        >>> sorted(set(choices([0.5, 2, 8])(100, np.random.default_rng(0)).tolist()))
        [0.5, 2.0, 8.0]
    """
    known = [number("values", value, above=0) for value in _as_tuple("values", values)]
    shares = None
    if weights is not None:
        given = _as_tuple("weights", weights)
        if len(given) != len(known):
            allowed = f"one for each of the {len(known)} values"
            raise InputError("weights", given=given, allowed=allowed)
        relative = [number("weights", weight, at_least=0, at_most=1e100) for weight in given]
        if not any(relative):
            raise InputError("weights", given=given, allowed="above 0 for at least one value")
        shares = np.array(relative) / math.fsum(relative)
    return lambda count, rng: np.asarray(
        rng.choice(np.array(known), size=_count(count), p=shares), dtype=np.float64
    )


#: The distributions by the name a configuration file calls them.
DISTRIBUTIONS: dict[str, Callable[..., Distribution]] = {
    "uniform": uniform,
    "gaussian-mixture": gaussian_mixture,
    "fixed": fixed,
    "choices": choices,
}


def _as_components(given: object) -> tuple[tuple[float, float, float], ...]:
    """The components as triples; a table {weight, mean, std} is one too."""
    allowed = "a list of (weight, mean, std), each weight above 0 and each std at least 0"
    components = []
    for row in _as_tuple("components", given):
        triple = row
        if isinstance(row, Mapping) and set(row) == {"weight", "mean", "std"}:
            triple = (row["weight"], row["mean"], row["std"])
        if not isinstance(triple, Sequence) or isinstance(triple, str) or len(triple) != 3:
            raise InputError("components", given=row, allowed=allowed)
        weight, mean, std = triple
        components.append(
            (
                number("components.weight", weight, above=0, at_most=1e100),
                number("components.mean", mean, at_least=-1e100, at_most=1e100),
                number("components.std", std, at_least=0, at_most=1e100),
            )
        )
    return tuple(components)


def _as_tuple(field: str, given: object) -> tuple[Any, ...]:
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise InputError(field, given=given, allowed="a list with at least one entry")
    return tuple(given)


def _count(count: int) -> int:
    return whole_number("count", count, at_least=0)


def _share_above(lowest: float, mean: float, std: float) -> float:
    """P(X > lowest) of a normal X."""
    if std == 0:
        return float(mean > lowest)
    return 0.5 * math.erfc((lowest - mean) / std / math.sqrt(2))


def _check_kept(kept: float, lowest: float) -> None:
    if kept < _LEAST_KEPT:
        raise InputError.because(
            f"only {kept:.2g} of the draws of this distribution would be above {lowest:g}; the "
            f"rest would have to be discarded. At least {_LEAST_KEPT:g} must remain: raise its "
            "values or lower the minimum."
        )


def _draw_kept(count: int, minimum: float | None, some: Callable[[int], FloatArray]) -> FloatArray:
    """``count`` draws above 0 and the minimum, each other one drawn again in its place."""
    draws = some(_count(count))
    for _ in range(_MOST_TRIES):
        discarded = (draws <= 0) | (draws < (minimum or 0.0))
        if not discarded.any():
            return draws
        draws[discarded] = some(int(np.count_nonzero(discarded)))
    raise InputError.because(
        "this distribution hardly ever gives a number above 0 and its minimum; raise its values."
    )


#: The budgets of the paper's experiments. It writes N(0.5, 0.04) without saying whether 0.04 is a
#: variance or a standard deviation. Its other normal distributions give the variance, so that is
#: the plain name (standard deviation 0.2); ``-std`` is the other reading.
PAPER_BUDGETS: dict[str, Distribution] = {
    "uniform-0-1": uniform(0, 1),
    "mixture-0.5-10": gaussian_mixture([(0.3, 0.5, 0.2), (0.7, 10, 1)]),
    "mixture-2-8": gaussian_mixture([(0.3, 2, 0.2), (0.7, 8, 1)]),
    "mixture-0.5-10-std": gaussian_mixture([(0.3, 0.5, 0.04), (0.7, 10, 1)]),
    "mixture-2-8-std": gaussian_mixture([(0.3, 2, 0.04), (0.7, 8, 1)]),
}


#: v_k of the paper's experiments.
PAPER_SIZE_WEIGHTS = uniform(0.5, 1.5)


def share_out(total: int, weights: ArrayLike) -> IntArray:
    """Whole sizes |M_k| = |S| v_k / Σ v that sum to exactly |S| (the paper's setup).

    Each share is rounded down; the records left over go to the largest remainders.

    Args:
        total: records of all clients together, |S|.
        weights: v_k, all above 0.

    Raises:
        InputError: if a client would get no record.

    Example:
        >>> share_out(10, [1.0, 1.0, 1.5])
        array([3, 3, 4])
    """
    total = whole_number("total_size", total, at_least=1, at_most=MAX_SIZE)
    shares = np.atleast_1d(float_array("weights", weights, above=0, at_most=1e100))
    shares = total * (shares / shares.sum())
    sizes: IntArray = np.floor(shares).astype(np.int64)
    # The rounding of a million shares may add up to more or less than the remainders suggest;
    # whole extra rounds (or one less) are dealt to all, the rest by remainder.
    extra_for_all, left = divmod(total - int(sizes.sum()), len(sizes))
    order = np.argsort(np.floor(shares) - shares, kind="stable")
    sizes += extra_for_all
    sizes[order[:left]] += 1
    empty = int(np.count_nonzero(sizes < 1))
    if empty:
        raise InputError(
            "total_size",
            given=total,
            allowed=f"large enough for all {len(sizes)} clients; {empty} would get no record",
            next_step="Raise total_size, lower count, or choose weights that differ less.",
        )
    return sizes

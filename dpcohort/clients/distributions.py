# SPDX-License-Identifier: Apache-2.0
"""Distributions of positive numbers: budgets and sizes of simulated clients, and the paper's.

What is not above 0 (or is below a stated minimum) is discarded and drawn again, as the paper does
with the negative values of its Gaussian mixtures. Nothing is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, IntArray, float_array, number, whole_number
from dpcohort.clients.population import MAX_SIZE
from dpcohort.errors import InputError

# A distribution that keeps fewer of its draws than this is a mistake, and slow to draw from.
_LEAST_KEPT = 0.01
# With 1 % kept, the chance that one value needs more tries than this is below 1e-43.
_MOST_TRIES = 10_000


@dataclass(frozen=True)
class Fixed:
    """The same value for everyone.

    Example:
        >>> Fixed(2.0).draw(3, np.random.default_rng(0))
        array([2., 2., 2.])
    """

    value: float

    def __post_init__(self) -> None:
        number("value", self.value, above=0)

    def draw(self, count: int, rng: np.random.Generator) -> FloatArray:
        """``count`` times the value; ``rng`` is not used."""
        return np.full(_count(count), float(self.value))


@dataclass(frozen=True)
class Uniform:
    """U(low, high); 0 itself is never drawn.

    U(0, 1), the paper's budgets, now and then gives a client an epsilon near 0 whose noise makes
    it useless. That is left as it is unless ``minimum`` is given.

    Attributes:
        low: at least 0.
        high: above low.
        minimum: draws below it are discarded and drawn again.

    Example:
        >>> draws = Uniform(0, 1, minimum=0.1).draw(1000, np.random.default_rng(0))
        >>> bool(draws.min() >= 0.1), bool(draws.max() < 1)
        (True, True)
    """

    low: float
    high: float
    minimum: float | None = None

    def __post_init__(self) -> None:
        number("low", self.low, at_least=0)
        number("high", self.high, above=self.low)
        if self.minimum is not None:
            number("minimum", self.minimum, at_least=0, below=self.high)
            kept = (self.high - max(self.low, self.minimum)) / (self.high - self.low)
            _check_kept(kept, self.minimum)

    def draw(self, count: int, rng: np.random.Generator) -> FloatArray:
        """``count`` independent draws."""
        return _draw_kept(count, self.minimum, lambda some: rng.uniform(self.low, self.high, some))


@dataclass(frozen=True)
class GaussianMixture:
    """A mixture of normal distributions, what is not positive discarded and drawn again.

    Attributes:
        components: (weight, mean, standard deviation) of each; weights are relative.
        minimum: draws below it are discarded too.

    Example:
        >>> mixture = GaussianMixture([(0.3, 0.5, 0.2), (0.7, 10, 1)])
        >>> draws = mixture.draw(10_000, np.random.default_rng(0))
        >>> bool(draws.min() > 0), round(float(np.mean(draws < 5)), 2)
        (True, 0.3)
    """

    components: Sequence[tuple[float, float, float]]
    minimum: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", _as_components(self.components))
        if self.minimum is not None:
            number("minimum", self.minimum, at_least=0)
        lowest = self.minimum or 0.0
        kept = sum(weight * _share_above(lowest, mean, std) for weight, mean, std in self._shares)
        _check_kept(kept, lowest)

    def draw(self, count: int, rng: np.random.Generator) -> FloatArray:
        """``count`` independent draws of the mixture, given that they are kept."""
        weights, means, stds = (np.array(column) for column in zip(*self._shares, strict=True))

        def some(missing: int) -> FloatArray:
            which = rng.choice(len(weights), size=missing, p=weights)
            return np.asarray(rng.normal(means[which], stds[which]), dtype=np.float64)

        return _draw_kept(count, self.minimum, some)

    @property
    def _shares(self) -> list[tuple[float, float, float]]:
        total = math.fsum(weight for weight, _, _ in self.components)
        return [(weight / total, mean, std) for weight, mean, std in self.components]


@dataclass(frozen=True)
class Choices:
    """One of a few values, each with its weight.

    Attributes:
        values: what can be drawn, all above 0.
        weights: relative; equal if not given.

    Example:
        >>> sorted(set(Choices([0.5, 2, 8]).draw(100, np.random.default_rng(0)).tolist()))
        [0.5, 2.0, 8.0]
    """

    values: Sequence[float]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        values = _as_tuple("values", self.values)
        for value in values:
            number("values", value, above=0)
        object.__setattr__(self, "values", values)
        if self.weights is None:
            return
        weights = _as_tuple("weights", self.weights)
        if len(weights) != len(values):
            allowed = f"one for each of the {len(values)} values"
            raise InputError("weights", given=weights, allowed=allowed)
        for weight in weights:
            number("weights", weight, at_least=0, at_most=1e100)
        if not any(weights):
            raise InputError("weights", given=weights, allowed="above 0 for at least one value")
        object.__setattr__(self, "weights", weights)

    def draw(self, count: int, rng: np.random.Generator) -> FloatArray:
        """``count`` independent draws."""
        share = None
        if self.weights is not None:
            share = np.array(self.weights, dtype=np.float64) / math.fsum(self.weights)
        values = np.array(self.values, dtype=np.float64)
        return np.asarray(rng.choice(values, size=_count(count), p=share), dtype=np.float64)


#: Something positive numbers are drawn from.
Distribution = Fixed | Uniform | GaussianMixture | Choices

#: The distributions by the name a configuration file calls them.
DISTRIBUTIONS: dict[str, Callable[..., Distribution]] = {
    "uniform": Uniform,
    "gaussian-mixture": GaussianMixture,
    "fixed": Fixed,
    "choices": Choices,
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
    "uniform-0-1": Uniform(0, 1),
    "mixture-0.5-10": GaussianMixture([(0.3, 0.5, 0.2), (0.7, 10, 1)]),
    "mixture-2-8": GaussianMixture([(0.3, 2, 0.2), (0.7, 8, 1)]),
    "mixture-0.5-10-std": GaussianMixture([(0.3, 0.5, 0.04), (0.7, 10, 1)]),
    "mixture-2-8-std": GaussianMixture([(0.3, 2, 0.04), (0.7, 8, 1)]),
}


#: v_k of the paper's experiments.
PAPER_SIZE_WEIGHTS = Uniform(0.5, 1.5)


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

# SPDX-License-Identifier: Apache-2.0
"""Corollary 2: the number of steps T that makes Theorem 2's bound least, proved globally.

For a given selection see :class:`SelectionCurve`. In :func:`best_total_steps` the selection is
chosen together with T: with x = sqrt(T) the bound is (B1/2) v(x) + sqrt(R / x), where
R = F(w_1) - F* + L B1^2 / 2 and v(x) is the least value of Problem 1 at eta = 2 L x. Each
selection's value is concave in x and so is their minimum; the bound may have several local minima.
On an interval v is above its chord, and a chord plus sqrt(R / x) is convex with its minimum in
closed form: a lower bound, hence a branch and bound with certificate.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array, number, whole_number
from dpcohort.errors import InputError
from dpcohort.selection.bound import nonconvex_parts
from dpcohort.selection.error_terms import Constants, checked_distribution, error_terms
from dpcohort.selection.solver import solve_selection

__all__ = ["LARGEST_STEPS", "BestSteps", "FixedBest", "SelectionCurve", "best_total_steps"]


#: Intervals of relative width below this are not divided.
_ROUNDING = 1e-14
#: The range of T is explored by this factor until the tail is proved worse.
_GROWTH = 16


@dataclass(frozen=True, kw_only=True)
class BestSteps:
    """The best number of steps, and the proof that no other is better.

    Attributes:
        total_steps: the best T; None when the bound keeps falling towards its infimum as T grows,
            which happens when public clients can carry the training alone.
        bound: the bound at that T, or its infimum when there is none.
        lower_bound: no T (and, unless it was given, no selection) has a bound below this.
        probabilities: the selection at that T, or the limiting one, public clients only.
        evaluations: how often the bound was computed.
        trivial: B1, which Assumption 3 gives without any theorem.
        limit: the bound's limit as T grows; infinity when the noise makes it grow.
    """

    total_steps: int | None
    bound: float
    lower_bound: float
    probabilities: FloatArray = field(repr=False)
    evaluations: int
    trivial: float
    limit: float

    @property
    def gap(self) -> float:
        """How much better another choice could be at most."""
        return max(0.0, self.bound - self.lower_bound)

    @property
    def attained(self) -> bool:
        """Whether some T has this bound; otherwise it is only approached as T grows."""
        return self.total_steps is not None

    @property
    def vacuous(self) -> bool:
        """Whether even the best bound says no more than Assumption 3."""
        return self.bound >= self.trivial

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.total_steps is None:
            found = (
                f"There is no best T: the bound comes ever closer to {self.bound:.4g} as T grows, "
                "because clients without noise can carry the training alone; give max_steps for "
                "the best T you can afford."
            )
        else:
            found = (
                f"T = {self.total_steps} has the least bound, {self.bound:.4g}; none is below "
                f"{self.lower_bound:.4g}."
            )
        if self.vacuous:
            found += (
                f" It says nothing: no gradient is longer than B1 = {self.trivial:.4g} by "
                "Assumption 3. Do not choose T by it."
            )
        return found


def best_total_steps(
    constants: Constants,
    *,
    unbiased: ArrayLike,
    noise_levels: ArrayLike,
    dimension: int,
    probabilities: ArrayLike | None = None,
    constant_noise: float = 0.0,
    max_steps: int | None = None,
    tolerance: float = 1e-6,
) -> BestSteps:
    """The T >= 1 that makes Theorem 2's bound least (Corollary 2), with its certificate.

    Args:
        constants: Assumptions 1, 3 and 4 in numbers.
        unbiased: p^u, proportional to the sizes.
        noise_levels: V_k, 0 for public clients, infinite for clients that cannot be heard.
        dimension: D, number of trained parameters.
        probabilities: a selection to keep; when not given the best one is found together with T.
        constant_noise: with given probabilities, the part of the noise that does not grow with T,
            in units of C^2: for n independent draws with variance C^2 (A_k + V_k steps) it is
            D / N^select times the sum of p_k A_k + T^l p_k (1 - p_k) V_k. It only adds to the
            start's part, so the same proof holds.
        max_steps: the largest T that is considered.
        tolerance: relative gap at which the joint search stops.

    Example:
        >>> constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=1)
        >>> best = best_total_steps(constants, unbiased=[0.5, 0.5], noise_levels=[1e-6, 1e-6],
        ...                         dimension=1000, probabilities=[0.5, 0.5])
        >>> best.total_steps, round(best.bound, 3), best.vacuous
        (6000, 0.278, False)
    """
    most = None if max_steps is None else whole_number("max_steps", max_steps, at_least=1)
    number("tolerance", tolerance, at_least=1e-12, below=1)
    steady = number("constant_noise", constant_noise, at_least=0)
    u = checked_distribution("unbiased", unbiased)
    bound = constants.working_gradient_bound
    start = constants.initial_gap + 0.5 * constants.smoothness * bound**2 * (1.0 + steady)
    if probabilities is not None:
        terms = error_terms(
            constants,
            probabilities=probabilities,
            unbiased=u,
            noise_levels=noise_levels,
            dimension=dimension,
        )
        curve = SelectionCurve(
            gradient_bound=bound,
            start=start,
            selection_error=terms.selection_error,
            noise=2.0 * constants.smoothness * terms.privacy_error,
        )
        found = curve.best(most)
        return BestSteps(
            total_steps=found.total_steps,
            bound=found.bound,
            lower_bound=found.lower_bound,
            probabilities=checked_distribution("probabilities", probabilities),
            evaluations=found.evaluations,
            trivial=float(constants.gradient_bound),
            limit=curve.limit,
        )
    if steady:
        raise InputError(
            "constant_noise",
            given=constant_noise,
            allowed="0 unless probabilities are given",
            next_step="It depends on the selection; give the probabilities too.",
        )
    joint = _JointCurve(
        constants=constants,
        unbiased=u,
        noise_costs=_costs(noise_levels, dimension, u.size),
        start=start,
    )
    return _search(joint, most, tolerance)


def _costs(noise_levels: ArrayLike, dimension: int, clients: int) -> FloatArray:
    levels = float_array("noise_levels", noise_levels, at_least=0, allow_infinite=True)
    if levels.shape != (clients,):
        raise InputError(
            "noise_levels",
            given=f"{levels.size} entries",
            allowed=f"{clients} entries, one per client",
        )
    if np.isinf(levels).all():
        raise InputError(
            "noise_levels",
            given="infinite for every client",
            allowed="finite for at least one client",
            next_step="With infinite noise everywhere nothing can be learned.",
        )
    return levels * whole_number("dimension", dimension, at_least=1)


@dataclass(frozen=True)
class _Point:
    """The joint bound at one T: an upper value that is attained, and a proved lower one."""

    steps: int
    root: float
    value: float
    lower_part: float  # (B1/2) times a lower bound on the least value of Problem 1
    lower: float


@dataclass(kw_only=True)
class _JointCurve:
    """Theorem 2's bound with the best selection at each T; remembers the best point seen."""

    constants: Constants
    unbiased: FloatArray
    noise_costs: FloatArray
    start: float
    evaluations: int = 0
    uncertainty: float = 0.0  # the solver's largest gap; no search can certify more finely
    best_steps: int | None = None
    best_value: float = math.inf
    best_probabilities: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def half(self) -> float:
        return 0.5 * self.constants.working_gradient_bound

    def at(self, steps: int) -> _Point:
        root = math.sqrt(steps)
        answer = solve_selection(
            self.unbiased,
            2.0 * self.constants.smoothness * root * self.noise_costs,
            clipping_gap=self.constants.fixed_gap,
        )
        vanishing = math.sqrt(self.start / root)
        value = self.half * answer.objective + vanishing
        lower_part = self.half * answer.lower_bound
        self.evaluations += 1
        if value < self.best_value:
            self.best_steps, self.best_value = steps, value
            self.best_probabilities = answer.probabilities
        lower = min(value, lower_part + vanishing)
        self.uncertainty = max(self.uncertainty, value - lower)
        return _Point(steps, root, value, lower_part, lower)

    def chord(self, left: _Point, right: _Point) -> tuple[float, float]:
        """Lower bound on the bound between two points, and the x where the chord's sum is least."""
        where = right.root
        if where - left.root <= _ROUNDING * where:  # no width left for a chord; v grows with x
            return left.lower_part + math.sqrt(self.start / where), where
        slope = (right.lower_part - left.lower_part) / (where - left.root)
        if slope > 0:
            where = min(
                right.root, max(left.root, (0.5 * math.sqrt(self.start) / slope) ** (2 / 3))
            )
        below = left.lower_part + slope * (where - left.root)
        return below + math.sqrt(self.start / where), where


def _public_limit(curve: _JointCurve) -> tuple[float, FloatArray]:
    """The joint bound as T grows: train on public clients only, or infinity without any."""
    public = curve.noise_costs == 0
    share = float(curve.unbiased[public].sum())
    if not public.any():
        return math.inf, np.empty(0)
    gap = curve.constants.fixed_gap + 2.0 * max(0.0, 1.0 - share)
    alone = np.where(public, curve.unbiased, 0.0)
    alone = alone / share if share > 0 else public / public.sum()
    return 2.0 * curve.half * gap, alone


def _search(curve: _JointCurve, most: int | None, tolerance: float) -> BestSteps:
    """Best-first branch and bound over the whole numbers T, the unbounded tail included."""
    limit, limiting = _public_limit(curve)
    target = limit if most is None else math.inf  # the infimum counts only for unbounded T
    last = most if most is not None else LARGEST_STEPS
    heap: list[tuple[float, int, _Point, _Point]] = []
    left = curve.at(1)

    def good_enough() -> float:
        """What must lie below all that is left for the search to end."""
        return min(curve.best_value, target) * (1 - tolerance) - 2 * curve.uncertainty

    closed = left.lower  # least lower bound among the points that need no more search
    while left.steps < last:
        if left.lower_part >= good_enough():
            break  # v grows with T, so every larger T is at least this bad
        right = curve.at(min(left.steps * _GROWTH, last))
        heapq.heappush(heap, (curve.chord(left, right)[0], left.steps, left, right))
        left = right
    # The tail beyond the last point: nothing when it is max_steps, else at least v there.
    tail = math.inf if left.steps == most else left.lower_part
    while heap:
        if heap[0][0] >= good_enough():
            break
        _, _, low, high = heapq.heappop(heap)
        closed = min(closed, low.lower, high.lower)
        if high.steps - low.steps <= 1:
            continue  # no whole number between them
        middle = curve.at(_split(low, high, curve.chord(low, high)[1]))
        for a, b in ((low, middle), (middle, high)):
            heapq.heappush(heap, (curve.chord(a, b)[0], a.steps, a, b))
    lowest = min(closed, tail, heap[0][0] if heap else math.inf)
    at_infinity = target <= curve.best_value
    return BestSteps(
        total_steps=None if at_infinity else curve.best_steps,
        bound=min(target, curve.best_value),
        lower_bound=min(lowest, target, curve.best_value),
        probabilities=limiting if at_infinity else curve.best_probabilities,
        evaluations=curve.evaluations,
        trivial=float(curve.constants.gradient_bound),
        limit=limit,
    )


def _split(low: _Point, high: _Point, where: float) -> int:
    """A whole number strictly between two points: the chord's minimum, kept off the ends."""
    ratio = high.root / low.root
    kept = float(min(low.root * ratio**0.9, max(low.root * ratio**0.1, where)))
    return min(high.steps - 1, max(low.steps + 1, round(kept * kept)))


# Corollary 2 for a given selection: the T that makes Theorem 2's bound least, from one cubic.
#
# With x = sqrt(T), G = G^select,clip, Q = 2 L G^DP and R = F(w_1) - F* + L B1^2 / 2 the bound is
#
#     (B1/2) (G + sqrt(G^2 + Q x)) + sqrt(R / x).
#
# Its derivative vanishes where B1^2 Q^2 x^3 = 4 R (G^2 + Q x). The coefficients of this cubic
# change sign once, so it has one positive root (Descartes); before it the bound falls, after it
# it grows.


#: Beyond this T nothing is searched; certificates cover it all the same.
LARGEST_STEPS = 10**60


@dataclass(frozen=True, kw_only=True)
class FixedBest:
    """The best T of one selection.

    Attributes:
        total_steps: T; None when there is no noise and the bound falls for ever.
        bound: the bound at T, or its limit.
        lower_bound: no allowed T has a bound below this.
        evaluations: how often the bound was computed.
    """

    total_steps: int | None
    bound: float
    lower_bound: float
    evaluations: int


@dataclass(frozen=True, kw_only=True)
class SelectionCurve:
    """Theorem 2's bound for one selection, as a function of x = sqrt(T).

    Attributes:
        gradient_bound: B1.
        start: R.
        selection_error: G.
        noise: Q.

    Example:
        >>> curve = SelectionCurve(gradient_bound=1, start=1.5, selection_error=0, noise=1e-3)
        >>> curve.best().total_steps                # without selection error T = 4 R / (B1^2 Q)
        6000
    """

    gradient_bound: float
    start: float
    selection_error: float
    noise: float

    @property
    def noiseless(self) -> float:
        """What is left as T grows when there is no noise, B1 G; below the bound in every case."""
        return self.gradient_bound * self.selection_error

    @property
    def limit(self) -> float:
        """The bound as T grows."""
        return math.inf if self.noise > 0 else self.noiseless

    def parts(self, root_steps: float) -> tuple[float, float]:
        """The growing and the falling part at x."""
        non_vanishing, vanishing, _ = nonconvex_parts(
            gradient_bound=self.gradient_bound,
            selection_error=self.selection_error,
            noise=self.noise,
            start=self.start,
            root_steps=root_steps,
        )
        return non_vanishing, vanishing

    def root_bracket(self) -> tuple[float, float]:
        """Two neighbouring floats around the root of B1^2 Q^2 x^3 = 4 R (G^2 + Q x), for Q > 0.

        As x^3 = s x + c with s = 4 R / (B1^2 Q) and c = s G^2 / Q, the root is at least
        m = max(sqrt(s), cbrt(c)) and below 2 m, since (2 m)^3 > 2 m^3 + m^3 >= 2 s m + c.
        """
        slope = 4.0 * self.start / self.gradient_bound**2 / self.noise
        constant = slope * (self.selection_error**2 / self.noise)
        low = max(math.sqrt(slope), math.cbrt(constant))
        high = 2.0 * low
        while low < (middle := 0.5 * (low + high)) < high:
            # Divided by x^2, so that nothing overflows where the root is representable.
            if middle < slope / middle + constant / middle / middle:
                low = middle
            else:
                high = middle
        return low, high

    def best(self, max_steps: int | None = None) -> FixedBest:
        """The best whole T from 1 to ``max_steps``, with its certificate."""
        if self.noise == 0 and max_steps is None:
            return FixedBest(
                total_steps=None, bound=self.limit, lower_bound=self.limit, evaluations=0
            )
        candidates, least = self._candidates(max_steps)
        values = {t: sum(self.parts(math.sqrt(t))) for t in candidates}
        # Where rounding cannot tell two values apart the first, nearest to the root, is taken.
        tied = min(values.values()) * (1 + _ROUNDING)
        steps = next(t for t, value in values.items() if value <= tied)
        return FixedBest(
            total_steps=steps,
            bound=values[steps],
            lower_bound=min(least, *values.values()) * (1 - _ROUNDING),
            evaluations=len(values),
        )

    def _candidates(self, most: int | None) -> tuple[list[int], float]:
        """The whole numbers T that can be best, nearest the root first, and a bound below all T.

        The bound falls before the root and grows after it, so only the root's whole neighbours
        can be best, or an end of the allowed range, where the bound is then monotone.
        """
        last = most if most is not None else LARGEST_STEPS
        low, high = self.root_bracket() if self.noise > 0 else (math.inf, math.inf)
        if low * low >= last:
            at_end = sum(self.parts(math.sqrt(last)))
            return [last], at_end if most is not None else self.noiseless
        if high <= 1.0:
            return [1], sum(self.parts(1.0))
        # Over x in [low, high] the growing part is least at low, the falling part at high.
        least = self.parts(low)[0] + self.parts(high)[1]
        around = (math.floor(low * low), round(low * high), math.ceil(high * high))
        neighbours = {min(last, max(1, t)) for t in around}
        return sorted(neighbours, key=lambda t: abs(t - low * high)), least

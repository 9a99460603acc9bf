# SPDX-License-Identifier: Apache-2.0
"""Problem 1 with distributed noise: budgets become weights (proofs: distributed-noise.md in docs).

A rule says what effective weight w_k each client shall have in the model. How often a client takes
part is then free: its mean gradient enters with the factor g_k = w_k / p_k in a share p_k of all
draws. The noise of a cohort must protect all its members, so it is as loud as the most demanding
one needs. With a and b the quadratic and the linear noise costs of Problem 1, cohorts of K and h
honest members, the noise term of Problem 1 becomes

    Q(w) = L(w)^2 / h,   L(w) = min over p of max_k (w_k / p_k) sqrt(b_k + a_k p_k),
                         over sum p <= 1, 0 <= p <= 1 / K (nobody is twice in a cohort).

Without linear costs, ``L^2 = max(sum a w^2, K max a w^2)``: as long as nobody is in every cohort,
this is Problem 1 with costs divided by h, and the solver there is solves it. In general ``w_k <= L
psi_k(p_k)`` with ``psi(p) = p / sqrt(b + a p)`` concave, so L is the gauge of a convex set, and

    minimise  G + sqrt(G^2 + L(w)^2 / h),   G = ||w - u||_1,   over sum w = 1, floor <= w <= cap,

is convex. It is solved along L: for a given L, clients whose share of draws grows fastest with
their weight (``q' = 1 / psi' > y``) are lowered, those with ``q' < x`` raised, up to what L lets
them say in every cohort. Any answer is certified by a dual bound from its prices alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import BoolArray, FloatArray, IntArray, number, whole_number
from dpcohort.errors import InputError
from dpcohort.selection._instance import (
    LARGEST_COST,
    Costs,
    bounded_costs,
    bounds_of,
    checked_instance,
    scaled_instance,
)
from dpcohort.selection._solver import Solution, at_limit, solve_selection, too_close

#: A client's mean gradient enters with at most this factor where draws can be had for it: who takes
#: part rarely speaks loudly, and the model would follow whoever happens to be drawn. It costs at
#: most M / (M - 1) times the noise variance, that squared where linear costs dominate.
LARGEST_WEIGHT = 4.0

#: A client that must be drawn without being wanted (everybody is in every cohort) says this much.
SMALLEST_WEIGHT = 2.0**-10

#: Of its wanted weight a client may lose this share because draws are whole numbers.
_LOST = 0.1

#: Above this many clients the search starts from the answer for an evenly spaced sample.
_SAMPLE_ABOVE = 1 << 14
_SAMPLE_SIZE = 1 << 12

#: Least growth of a cost with the draws, relative to what the first one costs.
_ALMOST_FLAT = 1e-12
_FALSE = 1e-9  # a bound that is above what was found by more than rounding proves nothing

#: Weights this close to a bound are at it.
_NEAR = 1e-11

_EPSILON = float(np.finfo(np.float64).eps)


class Pool(NamedTuple):
    """Members of a cohort who share noise: K of them, of whom h shares surely remain.

    Example:
        >>> costs = Costs(np.array([0.5, 0.5]), np.array([4.0, 4.0]))
        >>> Pool(2, 2).objective(np.array([0.5, 0.5]), costs)
        1.0
    """

    cohort_size: int
    honest: int

    def solved(self, costs: Costs) -> Solution:
        """The best effective weights of a checked instance, with their certificate."""
        if costs.linear is None:
            alone = solve_selection(
                costs.unbiased, costs.noise / self.honest, floor=costs.floor, cap=costs.cap
            )
            w = alone.probabilities
            terms = np.where(w > 0.0, np.where(w > 0.0, costs.noise, 0.0) * w * w, 0.0)
            seldom = self.cohort_size * float(terms.max()) <= float(terms.sum())
            if seldom or not math.isfinite(alone.objective):
                return alone
        clients, unavoidable = _checked(costs, self)
        solution = _Search(clients, self.honest).solution()
        if unavoidable:
            return replace(solution, objective=math.inf, lower_bound=math.inf, gap=0.0)
        return solution

    def solved_within(self, bias_cap: float, costs: Costs) -> Solution:
        """The least distributed noise whose bias ``||w - u||_1`` is at most the cap, and its eta.

        Args:
            bias_cap: largest bias, at least 0.
            costs: a checked instance, costs per unit of eta.

        Returns:
            The solution at ``.eta``; eta is infinite where the cap does not bind.

        Example:
            >>> costs = Costs(np.array([0.5, 0.5]), np.array([1.0, 4.0]))
            >>> solution = Pool(2, 2).solved_within(0.2, costs)
            >>> solution.probabilities.round(4), solution.eta > 0
            (array([0.6, 0.4]), True)
        """
        gap = number("bias_cap", bias_cap, at_least=0)
        clients, _ = _checked(costs, self)
        search = _Search(clients, self.honest)
        nearest = _in_proportion(clients)
        if float(np.abs(nearest - clients.u).sum()) > gap + 1e-12:
            raise too_close(gap)
        free = np.where(clients.a > 0.0, clients.floor, clients.cap)
        if float(free.sum()) >= 1.0 - 1e-12:  # public clients can take all that may move
            quietest = _in_proportion(clients._replace(cap=free))
            if float(np.abs(quietest - clients.u).sum()) <= gap + 1e-12:
                return at_limit(quietest, math.inf)
        point = search.within(gap, _level(nearest, clients))
        if point is None or point.bias < gap - 1e-9:
            return at_limit(nearest if point is None else point.weights, math.inf)
        eta = self.honest * (point.rate**2 + 2.0 * point.bias * point.rate / point.level)
        best = self.solved(scaled_instance(eta, costs))
        objective = point.bias + math.hypot(point.bias, point.level * math.sqrt(eta / self.honest))
        return Solution(
            probabilities=point.weights,
            objective=objective,
            lower_bound=min(best.lower_bound, objective),
            gap=max(objective - best.lower_bound, 0.0),
            thresholds=(point.lower, point.upper),
            eta=eta,
        )

    def objective(self, weights: FloatArray, costs: Costs) -> float:
        """The objective at any effective weights w; floor and cap are not looked at."""
        linear = np.zeros_like(weights) if costs.linear is None else costs.linear
        clients, barred = _unbounded(costs.unbiased, costs.noise, linear, self)
        if bool((weights[barred] > 0.0).any()):
            return math.inf
        return _Search(clients, self.honest).objective(weights)

    def noise(
        self, weights: FloatArray, noise_costs: FloatArray, linear_costs: FloatArray
    ) -> float:
        """Q(w) per unit of eta: expected noise of a round with these effective weights.

        Example:
            >>> half = np.array([0.5, 0.5])
            >>> round(Pool(2, 2).noise(half, np.array([4.0, 4.0]), np.zeros(2)), 12)
            1.0
        """
        return self.objective(weights, Costs(weights, noise_costs, linear_costs)) ** 2

    def probabilities(
        self, weights: FloatArray, noise_costs: FloatArray, linear_costs: FloatArray
    ) -> FloatArray:
        """How often each client is drawn so that the noise for these weights is least.

        ``p_k`` is the share of draws at which all need the same noise, (c_k w_k / L)^2 without
        linear costs, at most 1 / K. Nobody's factor g_k = w_k / p_k exceeds ``LARGEST_WEIGHT`` if
        draws can be had, and draws that are left over go to whoever has most weight for its draws.

        Args:
            weights: w, effective weight of each client in the model.
            noise_costs: per unit of eta.
            linear_costs: per unit of eta.

        Example:
            >>> thirds = np.full(3, 1 / 3)
            >>> Pool(2, 2).probabilities(thirds, np.array([1.0, 1.0, 0.5]), np.zeros(3))
            array([0.4, 0.4, 0.2])
        """
        cap = 1.0 / self.cohort_size
        clients, _ = _unbounded(weights, noise_costs, linear_costs, self)
        level = _level(weights, clients)
        probabilities = np.zeros_like(weights)
        if level > 0.0:
            # Room for those with too large a factor is made by drawing the others less often.
            def drawn(log_level: float) -> FloatArray:
                shares = clients.shares(weights / (level * math.exp(log_level)))
                least: FloatArray = np.maximum(shares, weights / LARGEST_WEIGHT)
                return np.minimum(least, cap)

            _, high = _root(
                lambda x: 1.0 - float(drawn(x).sum()),
                *(0.0, 5.0),
                guess=0.0,
                accuracy=1e-13,
                step=1e-2,
            )
            probabilities = drawn(high)
        return _whole(probabilities, weights, cap)


class _Clients(NamedTuple):
    """A checked instance; costs of 0 (public) and infinite ones (cap 0) among it."""

    u: FloatArray
    a: FloatArray
    b: FloatArray
    floor: FloatArray
    cap: FloatArray
    largest: FloatArray  # psi_k(1 / K): weight per unit of L if drawn into every cohort
    members: float  # K

    def some(self, which: IntArray) -> _Clients:
        """Clients at these positions."""
        u, a, b, floor, cap, largest = (column[which] for column in self[:6])
        return _Clients(u, a, b, floor, cap, largest, self.members)

    def shares(self, v: FloatArray) -> FloatArray:
        """q_k(v): share of all draws with which a client says v per unit of L."""
        return np.asarray(0.5 * v * (self.a * v + np.sqrt((self.a * v) ** 2 + 4.0 * self.b)))

    def marginal(self, v: FloatArray) -> FloatArray:
        """q'_k(v)."""
        slope = self.a * v
        root = np.sqrt(slope**2 + 4.0 * self.b)
        with np.errstate(invalid="ignore", divide="ignore"):
            rest = np.where(root > 0.0, (slope**2 + 2.0 * self.b) / root, 0.0)
        return np.asarray(slope + rest)

    def said_at(self, price: float) -> FloatArray:
        """The v with q'(v) = price: 0 where even the first draw is dearer."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            # 1 / z solves b y^3 + y = 2 / price, z = sqrt(b + a p).
            y = self._inverse_root(price)
            v = (1.0 - self.b * y * y) / (self.a * y)
        return np.where(self.a > 0.0, np.maximum(v, 0.0), np.inf)

    def said(self, p: FloatArray) -> FloatArray:
        """psi_k(p): what a client says per unit of L with this share of all draws."""
        z = np.sqrt(self.b + self.a * p)
        return np.where(z > 0.0, p / np.where(z > 0.0, z, 1.0), 0.0)

    def drawn_at(self, price: float | FloatArray) -> FloatArray:
        """The p, at most 1 / K, with 1 / psi'(p) = price."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            y = self._inverse_root(price)
            p = (1.0 / y**2 - self.b) / self.a
        p = np.where((self.a > 0.0) & (price > 0.0), p, 0.0)
        return np.asarray(np.clip(p, 0.0, 1.0 / self.members))

    def _inverse_root(self, price: float | FloatArray) -> FloatArray:
        if not self.b.any():
            return np.broadcast_to(np.asarray(2.0 / price), self.u.shape)
        t = np.sqrt(3.0 * self.b) / price
        scaled = np.where(t > 1e-5, np.sinh(np.arcsinh(3.0 * t) / 3.0) / np.maximum(t, 1e-5), 1.0)
        return np.asarray(scaled * (2.0 / price))


def solve_distributed(
    unbiased: ArrayLike,
    noise_costs: ArrayLike,
    *,
    cohort_size: int,
    honest: int,
    linear_costs: ArrayLike | None = None,
    floor: ArrayLike | None = None,
    cap: ArrayLike | None = None,
) -> Solution:
    """The effective weights that minimise the persistent error where noise is distributed.

    Args:
        unbiased: p^u, proportional to the sizes; sums to 1 (up to 1e-9).
        noise_costs: ``a_k = eta D V_k``, at least 0; 0 for a public client, infinity for one that
            must not be drawn.
        cohort_size: K.
        honest: h, members of a cohort whose shares of noise surely are in the sum, at least 2: who
            counts on nobody else adds all of its own noise, as in Problem 1 itself.
        linear_costs: ``b_k``, at least 0; what a schedule adds beyond the paper's noise.
        floor: smallest weights, one number or one for each client.
        cap: largest weights, one number or one for each client.

    Returns:
        A :class:`~dpcohort.selection._solver.Solution` whose probabilities are the effective
        weights w.

    Raises:
        InputError: for values out of range, shapes that differ, or bounds that nothing meets.

    Example:
        >>> local = solve_selection([0.5, 0.5], [1.0, 400.0])
        >>> distributed = solve_distributed([0.5, 0.5], [1.0, 400.0], cohort_size=2, honest=2)
        >>> distributed.objective < local.objective, distributed.gap < 1e-9
        (True, True)
        >>> distributed.probabilities.round(4)
        array([0.9524, 0.0476])
    """
    members = whole_number("cohort_size", cohort_size, at_least=1)
    whole_number("honest", honest, at_least=2, at_most=members)
    costs = checked_instance(unbiased, noise_costs, linear_costs, floor, cap)
    if members > costs.unbiased.size:
        raise InputError(
            "cohort_size",
            given=members,
            allowed=f"at most the {costs.unbiased.size} clients there are, each once in a cohort",
        )
    return Pool(members, honest).solved(costs)


def _whole(found: FloatArray, weights: FloatArray, cap: float) -> FloatArray:
    """Shares of draws that sum to 1: what is left over goes where g = w / p is largest."""

    def raised(log_factor: float) -> FloatArray:
        more: FloatArray = np.maximum(found, math.exp(log_factor) * weights)
        return np.minimum(more, cap)

    _, high = _root(
        lambda x: float(raised(x).sum()) - 1.0, -60.0, 600.0, guess=0.0, accuracy=1e-15, step=0.5
    )
    shares = raised(high)
    rest = 1.0 - float(shares.sum())
    if rest > 1e-12:  # everybody wanted is in every cohort
        room = np.where(weights > 0.0, 0.0, cap - shares)
        shares = shares + room * min(1.0, rest / float(room.sum()))
    shares = np.minimum(shares, cap)
    return np.asarray(shares / shares.sum())


def distributed_weights(
    wanted: FloatArray,
    expected: FloatArray,
    draws: IntArray,
    needed: FloatArray,
    *,
    unbiased: FloatArray | None = None,
    noise_weight: float = 0.0,
) -> tuple[FloatArray, float]:
    """Factors g_k on mean gradients for the draws there are, and the noise that protects them all.

    Draws are whole numbers and multipliers exact, so that the factors w_k / p_k would not need
    the same noise from all. A client that would need more than the others speaks more softly, and
    the rest take over. A client expected less than once speaks for others like it when it is drawn.

    Args:
        wanted: w, effective weight of each client in the model.
        expected: draws of each client that were expected, n p_k.
        draws: draws of each client that there are.
        needed: standard deviation of the noise that protects a client's mean gradient, in units of
            C; 0 for public clients.
        unbiased: u; with it the level is that of least ``G + sqrt(G^2 + noise_weight level^2)``.
            Without it the weights are kept, but for what rounding the draws takes, at most a tenth.
        noise_weight: eta D / (h n).

    Returns:
        g, 0 for clients that are never drawn, with mean 1 over all draws; and the level, at least
        g_k needed_k for each client.

    Example:
        >>> factors, level = distributed_weights(
        ...     np.array([0.5, 0.5]), np.array([5.0, 5.0]), np.array([5, 5]), np.array([1.0, 3.0]))
        >>> factors, round(level, 6)
        (array([1., 1.]), 3.0)
    """
    here = draws > 0
    shares = draws / float(draws.sum())
    seldom = np.where(expected > 0.0, np.minimum(expected, 1.0), 1.0)
    target = np.where(here, np.maximum(wanted / seldom, SMALLEST_WEIGHT * shares), 0.0)
    target /= target.sum()
    need = np.where(here, np.nan_to_num(needed, nan=0.0), 0.0)
    held = need > 0.0
    weights = target
    if held.any():
        # Weight that each can have per unit of level, and the level that its target asks for.
        room = np.full_like(target, np.inf)
        room[held] = shares[held] / need[held]
        asked = np.where(held, target / room, 0.0)

        def cut(threshold: float) -> tuple[FloatArray, float]:
            kept = np.minimum(target, threshold * room)
            total = float(kept.sum())
            return kept / total, threshold / total

        if unbiased is None:
            # The level as planned, from the noise that the expected draws would have needed.
            rare = np.minimum(1.0, np.maximum(expected, 1.0) / np.maximum(draws, 1))
            planned = target / np.maximum(expected, 1.0) * need * np.sqrt(rare) * draws.sum()
            loudest = float(asked.max())
            threshold = max((1.0 - _LOST) * loudest, min(loudest, float(planned.max())))
        else:

            def objective(log_threshold: float) -> float:
                """What bias and noise come to where weights are cut there."""
                weights, level = cut(math.exp(log_threshold))
                bias = float(np.abs(weights - unbiased).sum())
                return bias + math.hypot(bias, math.sqrt(noise_weight) * level)

            low, high = (math.log(float(end)) for end in (asked[held].min(), asked[held].max()))
            grid = np.linspace(low, high, 65)
            best = int(np.argmin([objective(x) for x in grid.tolist()]))
            low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 64)])
            for _ in range(30):
                left, right = low + 0.382 * (high - low), high - 0.382 * (high - low)
                low, high = (low, right) if objective(left) <= objective(right) else (left, high)
            threshold = math.exp(0.5 * (low + high)) if low < high else math.exp(high)
        weights, _ = cut(threshold)
    factors = np.zeros_like(target)
    factors[here] = weights[here] / shares[here]
    factors /= float(shares @ factors)
    return factors, float((factors * need).max(initial=0.0)) * (1.0 + 1e-12)


def _checked(costs: Costs, pool: Pool) -> tuple[_Clients, bool]:
    """The instance, infinite costs as caps, and whether a floor forces one of them."""
    bounded, unavoidable = bounded_costs(costs)
    u, a = bounded.unbiased, bounded.noise
    b = np.zeros_like(u) if bounded.linear is None else bounded.linear
    floor, cap = bounds_of(bounded)
    # A cost that does not grow with the draws would leave the weights open.
    a = np.maximum(a, _ALMOST_FLAT * b)
    return _of(u, a, b, floor, cap, float(pool.cohort_size)), unavoidable


def _unbounded(
    u: FloatArray, noise: FloatArray, linear: FloatArray, pool: Pool
) -> tuple[_Clients, BoolArray]:
    """Clients without floors and caps, and who of them must not be drawn."""
    barred = (noise > LARGEST_COST) | (linear > LARGEST_COST)
    a, b = np.where(barred, 0.0, noise), np.where(barred, 0.0, linear)
    one = np.ones_like(u)
    return _of(u, a, b, 0.0 * one, one, float(pool.cohort_size)), barred


def _of(
    u: FloatArray, a: FloatArray, b: FloatArray, floor: FloatArray, cap: FloatArray, members: float
) -> _Clients:
    with np.errstate(divide="ignore"):
        largest = 1.0 / np.sqrt(members * members * b + members * a)
    return _Clients(u, a, b, floor, cap, largest, members)


class _Point(NamedTuple):
    """The best weights for one L, with the prices that support them."""

    level: float  # L
    weights: FloatArray
    lower: float  # x and y
    upper: float
    slack: bool  # draws are left over: only what one can say in every cohort binds
    bias: float  # G
    rate: float  # -dG / dL
    slope: float  # dF / dL

    @property
    def between(self) -> float:
        """How far apart the prices are; where L can hardly be less they meet, up to rounding."""
        return max(self.upper - self.lower, _EPSILON * self.upper)


# What a lower bound is made of, F >= c G + s w for all w: c; the largest support of s over the
# weights that L = 1 allows; s; the price of sum p; and where s may be more if no quieter L is
# possible.
_Dual = tuple[float, float, FloatArray, float, FloatArray]


class _Price:
    """The logarithm of a price, searched from where it was found last."""

    def __init__(self, accuracy: float) -> None:
        self.at, self.step, self.accuracy = 0.0, 1e-3, accuracy

    def root(self, rising: Callable[[float], float], most: float) -> tuple[float, float]:
        """A bracket of where the function changes sign, up to the most."""
        guess = min(self.at, most)
        low, high = _root(rising, -600.0, most, guess=guess, accuracy=self.accuracy, step=self.step)
        self.step = min(max(0.3 * abs(high - self.at), 1e-9), 1e-2)
        self.at = high
        return low, high


class _Search:
    """The least G + sqrt(G^2 + L^2 / h), along L."""

    def __init__(self, clients: _Clients, honest: float) -> None:
        self.clients, self.honest = clients, honest
        self.upper, self.lower = _Price(1e-13), _Price(1e-15)  # log of y and of x

    def solution(self) -> Solution:
        nearest = _in_proportion(self.clients)
        most = _level(nearest, self.clients)
        if most == 0.0:
            return self._certified(nearest, [])
        points = self._ends(most)
        candidates = [nearest, *(point.weights for point in points)]
        weights = min(candidates, key=self.objective)
        return self._certified(weights, points)

    def objective(self, weights: FloatArray) -> float:
        """G + sqrt(G^2 + L^2 / h) at any weights."""
        level = _level(weights, self.clients)
        bias = float(np.abs(weights - self.clients.u).sum())
        return bias + math.hypot(bias, level / math.sqrt(self.honest))

    def start(self) -> tuple[float, float, float] | None:
        """L, y and x (their logarithms) of an evenly spaced sample of many clients."""
        size = self.clients.u.size
        if size <= _SAMPLE_ABOVE:
            return None
        every = slice(None, None, size // _SAMPLE_SIZE)
        u, a, b, floor, cap, _, members = self.clients
        total = float(u[every].sum())
        if not 0.0 < total < 1.0:
            return None
        floor, cap = floor[every] / total, np.minimum(cap[every] / total, 1.0)
        if not (floor.sum() < 1.0 < cap.sum()) or bool((floor > cap).any()):
            return None
        # Weights and shares of draws are larger by the same factor; prices and L are the same.
        sample = _of(u[every] / total, a[every] * total, b[every], floor, cap, members * total)
        search = _Search(sample, self.honest)
        most = _level(_in_proportion(sample), sample)
        if most == 0.0:
            return None
        point = search._ends(most)[0]
        return math.log(point.level), search.upper.at, search.lower.at

    def within(self, gap: float, most: float) -> _Point | None:
        """The quietest point with at most this bias; None if only the loudest weights have it."""
        first = math.log(most) - 1e-9
        _, high, found = self._along(lambda point: gap - point.bias, most, first, 1e-14)
        return found.get(high)

    def _along(
        self, value: Callable[[_Point], float], most: float, first: float, accuracy: float
    ) -> tuple[float, float, dict[float, _Point]]:
        """Where along log L a rising value of points changes sign: a bracket, and the points."""
        least = math.log(max(1.0 / _loudest(self.clients), most * 1e-30))
        found: dict[float, _Point] = {}

        def at(log_level: float) -> float:
            point = self.at(math.exp(log_level))
            if point is None:
                return -math.inf
            found[log_level] = point
            return value(point)

        low, high = _root(at, least, math.log(most), guess=first, accuracy=accuracy, step=1e-4)
        return low, high, found

    def _ends(self, most: float) -> list[_Point]:
        """The points on both sides of the best L, nearest last; one if it is at an end."""
        guess = self.start()
        first = math.log(most) - 1e-9
        if guess is not None:
            first, self.upper.at, self.lower.at = guess
        # F is flat at its least value: half of the digits of L are all of the digits of F.
        accuracy = 1e-12 if guess is None else 1e-8
        low, high, found = self._along(lambda point: point.slope, most, first, accuracy)
        ends = [found[end] for end in (low, high) if end in found]
        if not ends:  # nothing but the loudest is possible, to the last digit
            point = self.at(math.exp(high) * (1 + 1e-12))
            ends = [] if point is None else [point]
        return sorted(ends, key=lambda point: abs(point.slope))

    def at(self, level: float) -> _Point | None:
        """The least bias at this L; None if no weights are that quiet."""
        clients = self.clients
        most = np.minimum(clients.cap, level * clients.largest)
        if float(most.sum()) < 1.0 or bool((clients.floor > most).any()):
            return None
        alike = _in_proportion(clients._replace(cap=most))
        if float(clients.shares(alike / level).sum()) <= 1.0:
            return self._point(level, alike, 0.0, 1.0, most, slack=True)
        kept = np.maximum(np.minimum(clients.u, most), clients.floor)
        start = clients.marginal(kept / level)
        tried: dict[float, tuple[FloatArray, float]] = {}

        def drawn(log_price: float) -> float:
            found = self._raised(level, math.exp(log_price), most, kept, start)
            if found is None:
                return -1.0
            tried[log_price] = found
            return float(clients.shares(found[0] / level).sum()) - 1.0

        top = math.inf
        if float(kept.sum()) > 1.0 + 1e-12:
            # Floors above u: others are lowered in any case, with least draws at a common price.
            dearest, _ = self.upper.root(
                lambda x: float(self._lowered(level, math.exp(x), kept, start).sum()) - 1.0, 600.0
            )
            top = math.exp(dearest)
            if float((found := self._lowered(level, top, kept, start)).sum()) > 1.0 + 1e-12:
                # Public clients alone are too many: they need no draws.
                found = _in_proportion(clients._replace(cap=found))
                if float(clients.shares(found / level).sum()) > 1.0:
                    return None
                return self._point(level, found, 0.0, 1.0, most, slack=True)
        free = self._raised(level, top, most, kept, start)
        if free is not None and float(clients.shares(free[0] / level).sum()) <= 1.0:
            # Of equally good weights those in proportion to u, as far as draws allow.
            part = 1.0
            for _ in range(60):
                mixed = free[0] + part * (alike - free[0])
                if float(clients.shares(mixed / level).sum()) <= 1.0:
                    break
                part *= 0.8
            else:
                mixed = free[0]
            return self._point(level, mixed, 0.0, 1.0, most, slack=True)
        low, high = self.upper.root(drawn, min(math.log(top), 600.0))
        weights, lower = tried[high]  # the weights of most add up to 1, so at some price they do
        if float(clients.shares(weights / level).sum()) > 1.0 + 1e-9:
            if low not in tried:
                return None
            # Where costs hardly grow, weights differ between prices as close as numbers can be.
            quiet = tried[low][0]
            more = weights - quiet
            _, part = _root(
                lambda x: float(clients.shares((quiet + x * more) / level).sum()) - 1.0,
                *(0.0, 1.0),
                guess=0.5,
                accuracy=1e-15,
                step=0.5,
            )
            weights = quiet + part * more
        return self._point(level, weights, lower, math.exp(high), most, slack=False)

    def _lowered(
        self, level: float, upper: float, kept: FloatArray, start: FloatArray
    ) -> FloatArray:
        """Weights with nobody above the price y, but for floors."""
        weights = kept.copy()
        dear = np.flatnonzero(start > upper)
        if dear.size:
            few = self.clients.some(dear)
            weights[dear] = np.maximum(
                np.minimum(level * few.said_at(upper), kept[dear]), few.floor
            )
        return weights

    def _raised(
        self, level: float, upper: float, most: FloatArray, kept: FloatArray, start: FloatArray
    ) -> tuple[FloatArray, float] | None:
        """Weights that sum to 1 with nobody above the price y, and x; None if they cannot.

        Args:
            level: L.
            upper: y.
            most: largest weight of each client.
            kept: its weight if nobody moved beyond what is allowed.
            start: q' there: who is above y is lowered, who is below x is raised.
        """
        clients = self.clients
        weights = self._lowered(level, upper, kept, start)
        missing = 1.0 - float(weights.sum())
        if missing <= 0.0:
            return weights, 0.0
        free = (clients.a == 0.0) & (most > weights)
        if free.any():
            if float((most - weights)[free].sum()) >= missing:
                return _shared(weights, free, most, missing), 0.0
            weights[free] = most[free]
        top = math.log(upper) if math.isfinite(upper) else 600.0
        margin = 0.5
        while True:
            # Only who is cheap enough can be raised; more of them if the price turns out higher.
            ceiling = min(self.lower.at + margin, top)
            cheap = np.flatnonzero(start < math.exp(ceiling))
            few, least, largest = clients.some(cheap), weights[cheap], most[cheap]
            others = float(weights.sum()) - float(least.sum())

            def raised(log_price: float) -> FloatArray:
                said = np.minimum(level * few.said_at(math.exp(log_price)), largest)  # noqa: B023
                return np.maximum(said, least)  # noqa: B023

            def total(log_price: float) -> float:
                return float(raised(log_price).sum()) + others - 1.0  # noqa: B023

            low, high = self.lower.root(total, ceiling)
            if low < ceiling or ceiling >= top:
                break
            margin *= 8.0
        if low >= top and total(high) < -1e-12:
            return None
        weights[cheap] = found = raised(high)
        if (excess := float(weights.sum()) - 1.0) > 1e-9:  # the price is between two numbers
            less = raised(low)
            weights[cheap] = found = found - excess / float((found - less).sum()) * (found - less)
        moved = cheap[found > least]
        if moved.size:  # the last digits
            weights[moved] *= 1.0 + (1.0 - float(weights.sum())) / float(weights[moved].sum())
        return weights, math.exp(high)

    def _point(
        self,
        level: float,
        weights: FloatArray,
        lower: float,
        upper: float,
        most: FloatArray,
        *,
        slack: bool,
    ) -> _Point:
        bias = float(np.abs(weights - self.clients.u).sum())
        root = math.hypot(bias, level / math.sqrt(self.honest))
        point = _Point(level, weights, lower, upper, slack, bias, 0.0, 0.0)
        worth = self._support(point) * weights
        rate = float(worth.sum()) / level
        wanted = level / (self.honest * (root + bias))
        loud = (weights > self.clients.u) & (weights < self.clients.cap * (1 - _NEAR))
        if not slack and rate < wanted and bool((weights[loud] >= most[loud] * (1 - _NEAR)).all()):
            # Nobody can be raised any more, so the price of raising is open: up to y.
            others = float(worth[~loud].sum()) * (upper - lower)
            loudness = 2.0 * float(weights[loud].sum())
            lower = (wanted * level * upper - others) / (wanted * level + loudness)
            point = point._replace(lower=min(max(lower, point.lower), upper * (1 - 1e-12)))
            rate = float((self._support(point) * weights).sum()) / level
        lowered = weights < np.minimum(self.clients.u, self.clients.cap) * (1 - _NEAR)
        least = lowered & (weights <= self.clients.floor * (1 + _NEAR))
        tight = lowered & ~least
        if (
            not slack
            and rate > wanted
            and bool((weights[tight] >= most[tight] * (1 - _NEAR)).all())
        ):
            # Nobody can be lowered less, so the price of lowering is open: up to those at a floor.
            others = float(worth[~tight].sum()) * point.between
            quietness = wanted * level - 2.0 * float(weights[tight].sum())
            if quietness > 0.0:
                dearest = self.clients.marginal(weights / level)[least].min(initial=math.inf)
                upper = min((wanted * level * point.lower + others) / quietness, float(dearest))
                point = point._replace(upper=max(upper, point.upper))
                rate = float((self._support(point) * weights).sum()) / level
        slope = level / (self.honest * root) - (1.0 + bias / root) * rate
        return point._replace(rate=rate, slope=slope)

    def _support(self, point: _Point) -> FloatArray:
        """The s of the bound, per unit of c: what a little more of each weight is worth."""
        clients, w = self.clients, point.weights
        bound = (w >= point.level * clients.largest * (1 - _NEAR)) & (w < clients.cap * (1 - _NEAR))
        if point.slack:
            # What is said here need not be said by who is above u, if anybody is so by choice.
            raised = (w > clients.u * (1 + _NEAR)) & (w > clients.floor * (1 + _NEAR))
            lost = bound & (w < clients.u * (1 - _NEAR)) & raised.any()
            return np.where(lost, 2.0, 0.0)
        s = clients.marginal(w / point.level)
        least = np.where(w < clients.u * (1 - _NEAR), point.upper, point.lower)
        s = np.where(bound, np.maximum(s, least), s)
        s = np.where(clients.a > 0.0, s, 0.0)
        return np.asarray(s * (2.0 / point.between))

    def _dual(self, point: _Point) -> _Dual:
        """Multipliers from the prices of a point."""
        bias, noise = self._angle(point.bias, point.level)
        clients = self.clients
        tight = point.weights >= point.level * clients.largest * (1 - 1e-6)
        forced = tight & (point.weights <= clients.floor * (1 + _NEAR)) & (clients.floor > 0.0)
        more = forced if forced.any() else tight & (point.weights < clients.cap * (1 - _NEAR))
        more = more & (point.slack | forced.any())
        draw_price = 0.0 if point.slack else 2.0 * bias / point.between
        return bias, noise, bias * self._support(point), draw_price, more.astype(np.float64)

    def _gradient(self, weights: FloatArray) -> _Dual:
        """Multipliers from weights alone: tight where floors or caps leave nothing else."""
        clients, level = self.clients, _level(weights, self.clients)
        bias, noise = self._angle(float(np.abs(weights - clients.u).sum()), level)
        v = weights / level if level > 0.0 else 0.0 * weights
        # All draws are needed, or L is what one client says in every cohort.
        needed = float(clients.shares(v).sum()) >= 1.0 - 1e-9
        s = clients.marginal(v) if needed else (v >= clients.largest * (1 - _NEAR)).astype(float)
        length = float(s @ v)
        unit = noise / length if length > 0.0 else 0.0
        return bias, noise, s * unit, unit * needed, np.zeros_like(s)

    def _angle(self, bias: float, level: float) -> tuple[float, float]:
        """What G and L count at a point, F >= c G + d L for all weights."""
        root = math.hypot(bias, level / math.sqrt(self.honest))
        return (1.0 + bias / root, level / (self.honest * root)) if root > 0.0 else (1.0, 0.0)

    def _certified(self, weights: FloatArray, points: list[_Point]) -> Solution:
        objective = self.objective(weights)
        duals = [self._dual(point) for point in points]
        if len(points) == 2 and points[0].slope * points[1].slope < 0.0:
            # At a kink of G the answer is supported by both sides together.
            part = points[1].slope / (points[1].slope - points[0].slope)
            mixed: Any = (part * x + (1.0 - part) * y for x, y in zip(*duals, strict=True))
            duals.append(tuple(mixed))
        proved = max([0.0, *(self._bound(dual) for dual in duals)])
        if proved < objective * (1.0 - 1e-10):
            proved = max(proved, self._bound(self._gradient(weights)))
        if proved > objective * (1.0 + _FALSE):
            proved = 0.0
        lower_bound = min(proved * (1.0 - 4.0 * _ALMOST_FLAT), objective)
        weights.setflags(write=False)
        thresholds = (points[0].lower, points[0].upper) if points else (0.0, 0.0)
        return Solution(
            probabilities=weights,
            objective=objective,
            lower_bound=lower_bound,
            gap=objective - lower_bound,
            thresholds=thresholds,
        )

    def _bound(self, dual: _Dual) -> float:
        """A lower bound on F over all weights, whatever the multipliers."""
        bias, noise, s, draw_price, ray = dual
        reach = self._reach(s, draw_price)
        best = self._bound_at(s * min(1.0, noise / reach) if reach > 0.0 else s, bias)
        if reach < noise:
            # Where L cannot be less, more s is free: on who is as loud as can be, or on everybody.
            along = float((ray[ray > 0.0] * self.clients.largest[ray > 0.0]).sum())
            if 0.0 < along < math.inf:
                longer = s + (noise - reach) / along * ray
                longer *= min(1.0, noise / self._reach(longer, draw_price))
                best = max(best, self._bound_at(longer, bias))
            everybody = _loudest(self.clients) * (1.0 + 1e-13)
            if 0.0 < everybody < math.inf:
                best = max(best, self._bound_at(s + (noise - reach) / everybody, bias))
        return best

    def _reach(self, s: FloatArray, draw_price: float) -> float:
        """At least the largest s v over what L = 1 allows."""
        clients = self.clients
        if draw_price > 0.0:
            p = clients.drawn_at(s / draw_price)
        else:
            p = np.full_like(s, 1.0 / clients.members)
        return draw_price + float((s * clients.said(p) - draw_price * p).sum())

    def _bound_at(self, s: FloatArray, c: float) -> float:
        """The bound for one s, at the best price of the weights."""
        clients, u = self.clients, self.clients.u
        middle = np.clip(u, clients.floor, clients.cap)
        # At a price of s - c a weight rises from its floor to u, at s + c to its cap; together they
        # are 1 at the best price. Where nothing need be moved, 0 is as good and loses no digits.
        prices = np.concatenate([s - c, s + c])
        steps = np.concatenate([middle - clients.floor, clients.cap - middle])
        price = _reaching(1.0 - float(clients.floor.sum()), prices, steps)
        best = 0.0
        for nu in (price, 0.0):
            terms = [c * np.abs(w - u) + (s - nu) * w for w in (middle, clients.floor, clients.cap)]
            least_terms = np.minimum(np.minimum(terms[0], terms[1]), terms[2])
            rounding = 16.0 * _EPSILON * (abs(nu) + float(np.abs(least_terms).sum()))
            best = max(best, nu + float(least_terms.sum()) - rounding)
        return best


def _level(weights: FloatArray, clients: _Clients) -> float:
    """L(w), the least noise for these weights."""
    loud = weights > 0.0
    bound = float((weights[loud] / clients.largest[loud]).max(initial=0.0))
    square = float((clients.a * weights**2).sum())
    if not clients.b.any():
        level = max(bound, math.sqrt(square))
    else:
        level = max(bound, math.sqrt(square), float((np.sqrt(clients.b) * weights).max()))
        for _ in range(100):  # convex and falling in L: Newton's steps from below never overshoot
            v = weights / level if level > 0.0 else weights
            excess = float(clients.shares(v).sum()) - 1.0
            slope = float((clients.marginal(v) * v).sum())
            if level == 0.0 or excess <= 1e-15 or slope <= 0.0:
                break
            level *= 1.0 + excess / slope
    return level


def _loudest(clients: _Clients) -> float:
    """The largest sum of weights that L = 1 allows."""
    if clients.u.size <= clients.members:
        return float(clients.largest[clients.cap > 0.0].sum())
    if bool(((clients.a == 0.0) & (clients.cap > 0.0)).any()):
        return math.inf

    def drawn(log_price: float) -> FloatArray:
        return np.where(clients.cap > 0.0, clients.drawn_at(math.exp(log_price)), 0.0)

    _, high = _root(
        lambda x: float(drawn(x).sum()) - 1.0, -600.0, 600.0, guess=0.0, accuracy=1e-14, step=1.0
    )
    return float(clients.said(drawn(high)).sum())


def _reaching(wanted: float, prices: FloatArray, steps: FloatArray) -> float:
    """The least price at which the steps up to it add up to what is wanted, or to all."""
    while prices.size > 1000:  # whichever half it is in
        below = prices <= np.median(prices[:: prices.size // 500])
        inside = float(steps[below].sum())
        half = below if inside >= wanted else ~below
        if not half.any() or half.all():
            break
        wanted -= 0.0 if inside >= wanted else inside
        prices, steps = prices[half], steps[half]
    order = np.argsort(prices)
    total = np.cumsum(steps[order])
    return float(prices[order[np.searchsorted(total, min(wanted, float(total[-1])))]])


def _in_proportion(clients: _Clients) -> FloatArray:
    """Weights in proportion to u as far as floor and cap allow: the least biased ones."""
    kept = np.clip(clients.u, clients.floor, clients.cap)
    missing = 1.0 - float(kept.sum())
    if abs(missing) <= 1e-15:
        return kept
    if missing > 0.0:
        return _shared(kept, np.ones(kept.size, dtype=np.bool_), clients.cap, missing)

    def lowered(log_factor: float) -> FloatArray:
        return np.clip(math.exp(log_factor) * clients.u, clients.floor, clients.cap)

    _, high = _root(
        lambda x: float(lowered(x).sum()) - 1.0, -600.0, 0.0, guess=-1e-3, accuracy=1e-16, step=1e-2
    )
    return lowered(high)


def _shared(kept: FloatArray, who: BoolArray, most: FloatArray, missing: float) -> FloatArray:
    """Weights raised in proportion, up to the most, by what is missing in all."""
    base = np.where(who, kept, 0.0)
    if float(np.where(base > 0.0, most - kept, 0.0).sum()) < missing:
        base = np.where(who, np.maximum(base, 1.0 / kept.size), 0.0)

    def raised(log_factor: float) -> FloatArray:
        return np.asarray(np.maximum(np.minimum(math.exp(log_factor) * base, most), kept))

    def excess(log_factor: float) -> float:
        return float((raised(log_factor) - kept).sum()) - missing

    _, high = _root(excess, -600.0, 600.0, guess=1e-3, accuracy=1e-15, step=1e-2)
    return raised(high)


def _root(
    rising: Callable[[float], float],
    low: float,
    high: float,
    *,
    guess: float,
    accuracy: float,
    step: float,
) -> tuple[float, float]:
    """A bracket of where a rising function changes sign; both ends at the end it does not reach.

    Args:
        rising: the function; minus infinity where it is not defined.
        low: the least argument.
        high: the largest.
        guess: where the search begins.
        accuracy: width of the bracket, relative to 1 + its ends, and value that counts as 0.
        step: how far from the guess to look first.
    """
    at = min(max(guess, low), high)
    value = rising(at)
    left, right, left_value, right_value = low, high, math.nan, math.nan
    while True:  # until the sign changes
        if value >= 0.0:
            right, right_value = at, value
            if at <= low or value == 0.0:
                return at, at
            if not math.isnan(left_value):
                break
            at = max(low, at - step)
        else:
            left, left_value = at, value
            if at >= high:
                return at, at
            if not math.isnan(right_value):
                break
            at = min(high, at + step)
        step *= 4.0
        value = rising(at)
    side = 0
    for count in range(200):
        width = right - left
        if width <= accuracy * (1.0 + abs(left)):
            break
        at = math.nan
        if math.isfinite(left_value) and count % 4 != 3:
            at = (left * right_value - right * left_value) / (right_value - left_value)
        if not left < at < right:
            at = 0.5 * (left + right)
        if not left < at < right:
            break
        value = rising(at)
        if abs(value) <= min(accuracy, 1e-12):
            return at, at
        if value >= 0.0:  # Illinois: an end that stays counts half
            left_value *= 0.5 if side > 0 else 1.0
            right, right_value, side = at, value, 1
        else:
            right_value *= 0.5 if side < 0 else 1.0
            left, left_value, side = at, value, -1
    return left, right

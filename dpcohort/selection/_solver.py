# SPDX-License-Identifier: Apache-2.0
"""Problem 1 of the paper, solved exactly, with a proof of how good the answer is.

    minimise  G + sqrt(G^2 + Q),   G = g0 + ||p - u||_1,   Q = sum a_k p_k^2 + b_k p_k,
    over      sum p = 1,  floor <= p <= cap.

The paper has g0 = 0, b = 0, floor = 0 and cap = 1, and ``a_k = eta D V_k``. That case has a closed
form once it is known who moves; the others are solved by water filling (:mod:`.instance`).
Whoever found the answer, :func:`.instance.certify` bounds its error from the probabilities alone.

In the paper's case the conditions of optimality (proof of Proposition 2) say that with two
thresholds x < y

    p_k = min(max(u_k, x / a_k), y / a_k),    y - x = 2 F*,    sum p = 1,

so who moves is decided by the marginal cost ``a_k u_k`` alone: clients below x are raised (set L),
clients above y are lowered (set H), the rest keep u_k. Once the two sets are known, F* is the
positive root of a quadratic, and x and y follow. Along the moved mass m, ``y - x - 2 F`` changes
sign once; the sets are found by bisection over clients in order of ``a_k u_k``. Only the few
clients near a threshold need to be in order, so large populations are first counted into narrow
classes of ``a_k u_k``; that takes linear time.

Public clients (a = 0) pin x to 0 and take all moved mass. Infinite costs mean p = 0: their
probability is mass that has to move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import BoolArray, FloatArray, number
from dpcohort.errors import InputError
from dpcohort.selection._instance import (
    LARGEST_COST,
    SMALLEST_COST,
    Costs,
    bounded_costs,
    bounds_of,
    certify,
    checked_instance,
    fill,
    fill_to_gap,
    marginal_ends,
    objective_of,
    pieces,
    scaled_instance,
    solve_by_filling,
)

#: Fewer clients than this are simply sorted.
_SORT_BELOW = 2048

#: Classes reach this many powers of two below the largest marginal cost.
_OCTAVES = 200

#: Classes on each side of the estimated threshold whose clients are put in order.
_MARGIN = 2


class Decided(NamedTuple):
    """Sums over the clients of which it is known how they move."""

    forced_mass: float = 0.0  # probability of infinite-cost clients, which has to move
    public: bool = False  # somebody takes any mass at no cost
    clipping_gap: float = 0.0  # g0
    low_inverse: float = 0.0  # sum of 1/a and of u over clients known to be raised
    low_mass: float = 0.0
    high_inverse: float = 0.0  # the same for clients known to be lowered
    high_mass: float = 0.0
    kept_noise: float = 0.0  # sum of a u^2 over clients known to keep u


class SortedCosts:
    """Clients, or classes of them, in rising order of marginal cost, with running sums.

    A pair (low, high) stands for the sets: the first ``low`` clients are raised, those from
    ``high`` on are lowered.

    Example:
        >>> cost, mass = np.array([1.0, 400.0]), np.array([0.5, 0.5])
        >>> SortedCosts(cost * mass, mass, 1 / cost, cost * mass**2, Decided()).sets()
        (1, 1)
    """

    def __init__(
        self,
        marginal: FloatArray,
        mass: FloatArray,
        inverse: FloatArray,
        noise: FloatArray,
        decided: Decided,
    ) -> None:
        self.marginal, self.mass, self.inverse, self.noise = marginal, mass, inverse, noise
        self.decided = decided
        self.size = marginal.size
        self.low_inverse = _running(inverse, decided.low_inverse)
        self.low_mass = _running(mass, decided.low_mass)
        self.high_inverse = _running(inverse[::-1], decided.high_inverse)[::-1]
        self.high_mass = _running(mass[::-1], decided.high_mass + decided.forced_mass)[::-1]
        self.low_noise = _running(noise, 0.0)
        # Moved mass when x, respectively y, stands exactly at a client's marginal cost.
        self.raised = marginal * self.low_inverse[:-1] - self.low_mass[:-1]
        self.lowered = self.high_mass[:-1] - marginal * self.high_inverse[:-1]

    @classmethod
    def of(cls, mass: FloatArray, cost: FloatArray, decided: Decided) -> SortedCosts:
        """Clients given in any order, by u and a."""
        marginal = cost * mass
        order = marginal.argsort()
        marginal, mass = marginal[order], mass[order]
        return cls(marginal, mass, 1.0 / cost[order], marginal * mass, decided)

    def thresholds(self) -> tuple[float, float]:
        """Thresholds x and y, by bisection and then exactly."""
        return self.settled(*self.sets())

    def settled(self, low: int, high: int) -> tuple[float, float]:
        """Thresholds of sets that reproduce themselves, from a guess, with carefully rounded sums.

        Running sums may put a client at a threshold on the wrong side by rounding; the closed form
        puts it back. A set that reproduces itself satisfies the conditions of optimality.
        """
        for _ in range(24):
            lower, upper = self._closed_form(low, high)
            below = int(self.marginal.searchsorted(lower, "left"))
            new_low = 0 if self.decided.public else below
            new_high = int(self.marginal.searchsorted(upper, "right"))
            if (new_low, new_high) == (low, high):
                break
            low, high = new_low, max(new_high, new_low)
        return lower, upper

    def prices_at(self, moved: float) -> tuple[float, float]:
        """Thresholds for a given moved mass, with carefully rounded sums."""
        decided = self.decided
        low, lower = self._lower_at(moved)
        if not decided.public:
            mass = decided.low_mass + float(self.mass[:low].sum())
            lower = (moved + mass) / (decided.low_inverse + float(self.inverse[:low].sum()))
        high = self.size - int(self.lowered[::-1].searchsorted(moved, "left"))
        if high == self.size:  # nobody is lowered
            return lower, float(self.marginal[-1])
        mass = decided.high_mass + decided.forced_mass + float(self.mass[high:].sum())
        upper = (mass - moved) / (decided.high_inverse + float(self.inverse[high:].sum()))
        return lower, upper

    def sets(self) -> tuple[int, int]:
        """The sets by bisection on the sign of y - x - 2 F, which falls as mass moves."""
        start, high = 0, self.size
        while start < high:
            middle = (start + high) // 2
            moved, upper = float(self.lowered[middle]), float(self.marginal[middle])
            low, lower = self._lower_at(moved)
            if self._excess(low, middle, lower, upper, moved) > 0.0:
                high = middle
            else:
                start = middle + 1
        if self.decided.public:
            return 0, high
        if self.high_inverse[high] == 0.0:
            return self._lower_at(float(self.high_mass[high]))[0], high
        # H is known; the same bisection over the steps of x that remain possible.
        first = self._lower_at(float(self.lowered[high]))[0] if high < self.size else 0
        last = self._lower_at(float(self.lowered[high - 1]))[0] if high > 0 else self.size
        while first < last:
            middle = (first + last) // 2
            moved, lower = float(self.raised[middle]), float(self.marginal[middle])
            upper = (float(self.high_mass[high]) - moved) / float(self.high_inverse[high])
            if self._excess(middle, high, lower, upper, moved) > 0.0:
                first = middle + 1
            else:
                last = middle
        return first, high

    def _lower_at(self, moved: float) -> tuple[int, float]:
        """Set L and threshold x once the mass ``moved`` has been added."""
        if self.decided.public:
            return 0, 0.0
        low = int(self.raised.searchsorted(moved, "left"))
        while self.low_inverse[low] == 0.0:
            low += 1
        return low, (moved + float(self.low_mass[low])) / float(self.low_inverse[low])

    def _excess(self, low: int, high: int, lower: float, upper: float, moved: float) -> float:
        """How far y - x exceeds 2 F: positive while moving more mass still pays."""
        if lower >= upper:
            return -1.0
        bias = self.decided.clipping_gap + 2.0 * moved
        noise = self.decided.kept_noise + float(self.low_noise[high]) - float(self.low_noise[low])
        noise += lower * lower * float(self.low_inverse[low])
        noise += upper * upper * float(self.high_inverse[high])
        root = math.sqrt(max(bias * bias + noise, 0.0))
        return upper - lower - 2.0 * (bias + root)

    def _closed_form(self, low: int, high: int) -> tuple[float, float]:
        """Thresholds of given sets: F* solves (1 + 4 rho) f^2 - 2 (2 kappa + g0) f - q = 0."""
        decided = self.decided
        high_inverse = decided.high_inverse + float(self.inverse[high:].sum())
        high_mass = decided.high_mass + decided.forced_mass + float(self.mass[high:].sum())
        noise = decided.kept_noise + float(self.noise[low:high].sum())
        if decided.public:
            rho, kappa = high_inverse, high_mass
        else:
            low_inverse = decided.low_inverse + float(self.inverse[:low].sum())
            low_mass = decided.low_mass + float(self.mass[:low].sum())
            inverse, mass = low_inverse + high_inverse, low_mass + high_mass
            if inverse > 0.0:
                rho = low_inverse * (high_inverse / inverse)
                kappa = high_mass - mass * (high_inverse / inverse)
                noise += mass * (mass / inverse)
            else:
                rho = kappa = 0.0
        square, half = 1.0 + 4.0 * rho, 2.0 * kappa + decided.clipping_gap
        objective = (half + math.hypot(half, math.sqrt(square * noise))) / square
        if decided.public:
            lower = 0.0
        elif inverse == 0.0:
            middle = 0.5 * float(self.marginal[0] + self.marginal[-1])
            return middle - objective, middle + objective
        else:
            lower = (mass - 2.0 * objective * high_inverse) / inverse
        return lower, lower + 2.0 * objective


def find_thresholds(
    mass: FloatArray, cost: FloatArray, decided: Decided
) -> tuple[float, float] | None:
    """Thresholds x and y for clients with finite positive noise costs; None if nobody need move.

    Args:
        mass: ``u``.
        cost: ``a``.
        decided: public clients, forced mass and clipping gap.

    Example:
        >>> x, y = find_thresholds(np.array([0.5, 0.5]), np.array([1.0, 400.0]), Decided())
        >>> 0.5 * 1.0 < x < y < 0.5 * 400.0
        True
    """
    bottom, top, noise = _survey(mass, cost)
    if decided.forced_mass == 0.0:
        gap = decided.clipping_gap
        objective = gap + math.hypot(gap, math.sqrt(noise))
        if top - (0.0 if decided.public else bottom) <= 2.0 * objective:
            return None
    if mass.size >= _SORT_BELOW:
        found = _by_classes(mass, cost, bottom, top, decided)
        if found is not None:
            return found
    return SortedCosts.of(mass, cost, decided).thresholds()


def _survey(mass: FloatArray, cost: FloatArray) -> tuple[float, float, float]:
    """Smallest and largest ``a u``, and the sum of ``a u^2``."""
    bottom, top, noise = math.inf, 0.0, 0.0
    for part in pieces(mass.size):
        marginal = cost[part] * mass[part]
        bottom, top = min(bottom, float(marginal.min())), max(top, float(marginal.max()))
        marginal *= mass[part]
        noise += float(marginal.sum())
    return bottom, top, noise


def _by_classes(
    mass: FloatArray, cost: FloatArray, bottom: float, top: float, decided: Decided
) -> tuple[float, float] | None:
    """Sorts only the clients near a threshold; None if a threshold is not where it was expected.

    A class holds the doubles that share exponent and the first bits of the fraction, so the sums at
    class borders are exact and the position inside a class is off by less than its width.
    """
    bits = max(2, min(8, mass.size.bit_length() - 9))
    shift = 52 - bits
    last = _class_of(top, shift)
    # Everything far below the top shares the first class.
    first = max(_class_of(bottom, shift), last - (_OCTAVES << bits))
    classes = last - first + 1
    masses, inverses, noises = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    for part in pieces(mass.size):
        u, a = mass[part], cost[part]
        marginal = a * u
        keys = marginal.view(np.int64) >> shift
        keys -= first
        np.maximum(keys, 0, out=keys)
        masses += np.bincount(keys, weights=u, minlength=classes)
        inverses += np.bincount(keys, weights=1.0 / a, minlength=classes)
        marginal *= u
        noises += np.bincount(keys, weights=marginal, minlength=classes)
    borders = ((np.arange(classes + 1, dtype=np.int64) + first) << shift).view(np.float64)
    borders[0] = min(borders[0], bottom)

    def around(position: int) -> tuple[float, float]:
        first, last = max(position - 1 - _MARGIN, 0), min(position + _MARGIN, classes)
        return float(borders[first]), float(borders[last])

    low, high = SortedCosts(borders[:-1], masses, inverses, noises, decided).sets()
    nobody = (float(borders[0]), float(borders[0]))
    return _between(mass, cost, decided, nobody if decided.public else around(low), around(high))


def _between(
    mass: FloatArray,
    cost: FloatArray,
    decided: Decided,
    low_bracket: tuple[float, float],
    high_bracket: tuple[float, float],
) -> tuple[float, float] | None:
    """The exact x and y if they lie in these half-open brackets, None if they do not."""
    if low_bracket[1] >= high_bracket[0]:
        low_bracket = high_bracket = (low_bracket[0], high_bracket[1])
    sums: list[tuple[float, ...]] = []
    undecided: list[tuple[FloatArray, FloatArray]] = []
    for part in pieces(mass.size):
        u, a = mass[part], cost[part]
        marginal = a * u
        raised = marginal < low_bracket[0]
        lowered = marginal >= high_bracket[1]
        staying: BoolArray = (marginal >= low_bracket[1]) & (marginal < high_bracket[0])
        unknown = ~(raised | lowered | staying)
        undecided.append((u[unknown], a[unknown]))
        inverse = 1.0 / a
        marginal *= u
        chosen = ((inverse, raised), (u, raised), (inverse, lowered), (u, lowered))
        sums.append(tuple(float(x[mask].sum()) for x, mask in (*chosen, (marginal, staying))))
    known = Decided(*decided[:3], *(math.fsum(column) for column in zip(*sums, strict=True)))
    mass, cost = (np.concatenate(column) for column in zip(*undecided, strict=True))
    some = SortedCosts.of(mass, cost, known)
    lower, upper = some.thresholds() if some.size else some.settled(0, 0)
    low_ok = decided.public or low_bracket[0] <= lower <= low_bracket[1]
    high_ok = high_bracket[0] <= upper <= high_bracket[1]
    # A threshold beyond the last client decides nothing, wherever it is.
    high_ok = high_ok or (upper > high_bracket[1] and known.high_inverse == 0.0)
    return (lower, upper) if low_ok and high_ok else None


def _class_of(value: float, shift: int) -> int:
    return int(np.float64(value).view(np.int64)) >> shift


def _running(values: FloatArray, start: float) -> FloatArray:
    """Running sums, beginning with the sum of nothing."""
    sums = np.empty(values.size + 1)
    sums[0] = 0.0
    np.cumsum(values, out=sums[1:])
    if start:
        sums += start
    return sums


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """Optimal probabilities with the certificate of their optimality.

    Attributes:
        probabilities: p, read-only.
        objective: F(p).
        lower_bound: a proved lower bound on the optimum, ``objective - gap``.
        gap: the most by which ``objective`` can exceed the optimum.
        thresholds: (x, y) with ``y - x = 2 F``: clients whose marginal cost ``a u + b/2`` is below
            x are raised above u, those above y are lowered.
        eta: the factor by which the costs given were multiplied: 1, except along a path.
    """

    probabilities: FloatArray
    objective: float
    lower_bound: float
    gap: float
    thresholds: tuple[float, float]
    eta: float = 1.0


def solve_selection(
    unbiased: ArrayLike,
    noise_costs: ArrayLike,
    *,
    linear_costs: ArrayLike | None = None,
    floor: ArrayLike | None = None,
    cap: ArrayLike | None = None,
    clipping_gap: float = 0.0,
) -> Solution:
    """The selection probabilities that minimise the persistent error of Theorem 2 (Problem 1).

    Args:
        unbiased: p^u, proportional to the sizes; sums to 1 (up to 1e-9).
        noise_costs: ``a_k = eta D V_k``, at least 0; 0 for a public client, infinity for one that
            must not be drawn.
        linear_costs: ``b_k``, at least 0; what a schedule adds beyond the paper's noise.
        floor: smallest probabilities, one number or one for each client.
        cap: largest probabilities, one number or one for each client.
        clipping_gap: g0, the part of G that selection cannot change; the paper drops it.

    Returns:
        A :class:`Solution`. Probability that goes to public clients is shared among them in
        proportion to ``unbiased`` (any other sharing has the same objective). The objective is
        infinite only if a floor forces a client with infinite cost to be drawn.

    Raises:
        InputError: for values out of range, shapes that differ, or bounds that nothing meets.

    Example:
        >>> solution = solve_selection([0.5, 0.5], [1.0, 400.0])
        >>> solution.probabilities.round(4)
        array([0.9856, 0.0144])
        >>> solution.gap < 1e-14 * solution.objective
        True
    """
    return solved(checked_instance(unbiased, noise_costs, linear_costs, floor, cap, clipping_gap))


def solved(given: Costs) -> Solution:
    """The optimum of a checked instance, with its certificate."""
    if given.linear is None and given.floor is None and given.cap is None:
        return _solve_pure(given)
    costs, unavoidable = bounded_costs(given)
    p, lower, upper = solve_by_filling(costs)
    return certified(p, costs, (lower, upper), unavoidable)


def certified(
    p: FloatArray,
    costs: Costs,
    thresholds: tuple[float, float],
    unavoidable: bool = False,
    eta: float = 1.0,
) -> Solution:
    """These probabilities, which become read-only, with their certificate.

    Args:
        p: the probabilities.
        costs: the instance they solve.
        thresholds: x and y.
        unavoidable: whether a floor forces a client with infinite cost to be drawn.
        eta: factor by which the costs given were multiplied.
    """
    objective, lower_bound, gap = (math.inf, math.inf, 0.0) if unavoidable else certify(p, costs)
    p.setflags(write=False)
    return Solution(
        probabilities=p,
        objective=objective,
        lower_bound=lower_bound,
        gap=gap,
        thresholds=thresholds,
        eta=eta,
    )


class _Kinds(NamedTuple):
    """Clients by the kind of their noise cost; those with finite positive costs on their own."""

    mass: FloatArray  # u and a of the clients with finite positive costs
    noise: FloatArray
    finite: BoolArray | None  # which those are; None if everybody
    public: BoolArray | None  # None if nobody
    decided: Decided


def _sort_out(costs: Costs) -> _Kinds:
    """Tells public clients and infinite costs from the rest."""
    u, a, gap = costs.unbiased, costs.noise, costs.clipping_gap
    if float(a.min()) >= SMALLEST_COST and float(a.max()) <= LARGEST_COST:
        return _Kinds(u, a, None, None, Decided(clipping_gap=gap))
    barred, public = a > LARGEST_COST, a < SMALLEST_COST
    if barred.all():
        raise InputError.because(
            f"noise_costs are infinite for all {a.size} clients, so nobody can be selected; "
            f"at least one must be below {LARGEST_COST:g}. Check for clients without data or "
            "with epsilon = 0."
        )
    some_public = bool(public.any())
    decided = Decided(forced_mass=float(u[barred].sum()), public=some_public, clipping_gap=gap)
    finite = ~(barred | public)
    return _Kinds(u[finite], a[finite], finite, public if some_public else None, decided)


def _assembled(u: FloatArray, kinds: _Kinds, thresholds: tuple[float, float] | None) -> FloatArray:
    """Probabilities of everybody from the thresholds; None keeps those with finite costs at u."""
    mass, noise = kinds.mass, kinds.noise
    p = mass.copy() if thresholds is None else np.empty_like(mass)
    if thresholds is not None:
        lower, upper = thresholds
        for part in pieces(mass.size):
            taken = p[part]
            np.divide(upper, noise[part], out=taken)
            np.minimum(taken, mass[part], out=taken)
            if not kinds.decided.public:
                np.maximum(taken, lower / noise[part], out=taken)
    if kinds.finite is None:
        return p
    everybody = np.zeros_like(u)
    everybody[kinds.finite] = p
    if kinds.public is not None:
        # Mass that leaves the others, not 1 minus what they keep: no cancellation.
        moved = kinds.decided.forced_mass
        for part in pieces(mass.size):
            moved += float((mass[part] - p[part]).sum())
        everybody[kinds.public] = _shared(u[kinds.public], moved)
    return everybody


def _solve_pure(costs: Costs) -> Solution:
    """Problem 1 as printed (with a clipping gap)."""
    kinds = _sort_out(costs)
    found = find_thresholds(kinds.mass, kinds.noise, kinds.decided) if kinds.mass.size else None
    p = _assembled(costs.unbiased, kinds, found)
    solution = certified(p, costs, found or (0.0, 0.0))
    if found is not None:
        return solution
    # Nobody moves: any pair of thresholds 2 F apart around all marginal costs will do.
    lower = 0.0
    if kinds.public is None:
        marginal = kinds.mass * kinds.noise
        lower = 0.5 * float(marginal.min() + marginal.max()) - solution.objective
    return replace(solution, thresholds=(lower, lower + 2.0 * solution.objective))


def _shared(u: FloatArray, moved: float) -> FloatArray:
    """Public probabilities: u scaled up, or equal shares if u is 0 for all of them."""
    total = float(u.sum())
    if total == 0.0:
        return np.full_like(u, moved / u.size)
    return u * (1.0 + moved / total)


# All selections from unbiased to least noise, as the weight eta of the noise grows.
#
# A point of the path can be asked for by eta (:meth:`SelectionPath.at`) or by the bias
# ``||p - u||_1`` one is ready to accept (:meth:`SelectionPath.at_gap`); the two name the same
# family, because ``y - x = 2 F`` can be solved for eta at any point:
#
#     eta = 4 (Q + (y - x) G) / (y - x)^2,    thresholds x, y and Q per unit of eta.
#
# At ``p = u`` this is the threshold eta_0 below which unbiased selection is optimal.


class SelectionPath:
    """The solutions of Problem 1 for every eta, for noise costs given per unit of eta.

    Args:
        unbiased: p^u.
        noise_costs: ``c_k = D V_k`` per unit of eta.
        linear_costs: linear costs per unit of eta.
        floor: smallest probabilities.
        cap: largest probabilities.
        clipping_gap: g0.

    Example:
        >>> path = SelectionPath([0.5, 0.5], [1.0, 4.0])
        >>> round(path.threshold, 4)
        2.2222
        >>> path.at(2.0).probabilities
        array([0.5, 0.5])
        >>> solution = path.at_gap(0.2)
        >>> solution.probabilities.round(4), round(solution.eta, 4)
        (array([0.6, 0.4]), 4.8)
    """

    def __init__(
        self,
        unbiased: ArrayLike,
        noise_costs: ArrayLike,
        *,
        linear_costs: ArrayLike | None = None,
        floor: ArrayLike | None = None,
        cap: ArrayLike | None = None,
        clipping_gap: float = 0.0,
    ) -> None:
        given = checked_instance(unbiased, noise_costs, linear_costs, floor, cap, clipping_gap)
        self._given, self._unbiased, self._clipping_gap = given, given.unbiased, given.clipping_gap
        #: The instance at eta = 1, infinite costs turned into caps at 0.
        self._costs, self._unavoidable = bounded_costs(given)
        self._is_pure = given.linear is None and floor is None and cap is None
        if self._is_pure:
            self._kinds = _sort_out(given)

    @cached_property
    def _sorted(self) -> SortedCosts:
        return SortedCosts.of(self._kinds.mass, self._kinds.noise, self._kinds.decided)

    @cached_property
    def threshold(self) -> float:
        """The largest eta at which unbiased selection is optimal, eta_0.

        ``4 (Q(u) + w g0) / w^2`` with w the spread of the marginal costs ``c_k u_k + b_k / 2``
        between the clients that could be lowered and those that could be raised; infinite if
        nobody would gain by moving, 0 if p = u is not allowed.
        """
        return 0.0 if self._unavoidable else unbiased_threshold(self._costs)

    @cached_property
    def limit(self) -> FloatArray:
        """The probabilities of least noise, which the path tends to as eta grows.

        They are proportional to 1/V_k in the paper's model; public clients take everything.
        """
        if self._is_pure:
            kinds = self._kinds
            if kinds.public is not None:
                p = _assembled(self._unbiased, kinds, (0.0, 0.0))
            else:
                inverse = 1.0 / kinds.noise
                p = np.zeros_like(self._unbiased)
                p[slice(None) if kinds.finite is None else kinds.finite] = inverse / inverse.sum()
        else:
            p, _, _ = fill(self._costs, *bounds_of(self._costs), half_width=0.0)
        p.setflags(write=False)
        return p

    @cached_property
    def maximum_gap(self) -> float:
        """The bias ``||p - u||_1`` in the limit of eta to infinity, the largest on the path."""
        return float(np.abs(self.limit - self._unbiased).sum())

    def at(self, eta: float) -> Solution:
        """The solution at one eta, with its certificate.

        Args:
            eta: weight of the noise, at least 0 and finite.
        """
        eta = number("eta", eta, at_least=0)
        return replace(solved(scaled_instance(eta, self._given)), eta=eta)

    def at_gap(self, gap: float) -> Solution:
        """The least noise whose bias ``||p - u||_1`` is at most ``gap``, and the eta it belongs to.

        Args:
            gap: bias cap tau, at least 0.

        Returns:
            The solution at ``.eta``, the largest eta (exactly eta, where p is unique in eta) at
            which it is optimal. Where the cap does not bind, the limit of the path with eta
            infinite; its objective is then infinite unless only public clients are drawn.
        """
        gap = number("bias_cap", gap, at_least=0)
        if gap >= self.maximum_gap:
            return self._at_limit(self.limit)
        if self._is_pure:
            moved = 0.5 * gap
            if moved < self._kinds.decided.forced_mass:
                raise too_close(gap)
            lower, upper = self._sorted.prices_at(moved)
            p = _assembled(self._unbiased, self._kinds, (lower, upper))
        else:
            filled = fill_to_gap(self._costs, gap)
            if filled is None:
                raise too_close(gap)
            p, lower, upper = filled
        bias = self._clipping_gap + float(np.abs(p - self._unbiased).sum())
        eta = _eta_of(_noise_at(p, self._costs), upper - lower, bias) if upper > lower else math.inf
        if eta > LARGEST_COST:
            return self._at_limit(p)
        scaled = scaled_instance(eta, self._costs)
        return certified(p, scaled, (eta * lower, eta * upper), self._unavoidable, eta)

    def _at_limit(self, p: FloatArray) -> Solution:
        """A selection of least noise, optimal only as eta goes to infinity."""
        bias = self._clipping_gap + float(np.abs(p - self._unbiased).sum())
        return at_limit(p, math.inf if _noise_at(p, self._costs) > 0.0 else 2.0 * bias)


def at_limit(p: FloatArray, objective: float) -> Solution:
    """These probabilities, optimal only as eta goes to infinity; they become read-only."""
    p.setflags(write=False)
    return Solution(
        probabilities=p,
        objective=objective,
        lower_bound=objective,
        gap=0.0,
        thresholds=(math.inf, math.inf),
        eta=math.inf,
    )


def too_close(gap: float) -> InputError:
    """Why no probabilities have a bias so small."""
    return InputError(
        "bias_cap",
        given=gap,
        allowed="at least the bias that floors, caps and infinite costs force",
        next_step="Raise the bias cap, or loosen the floor or cap.",
    )


def unbiased_threshold(costs: Costs) -> float:
    """The largest eta at which unbiased selection is optimal, eta_0; 0 if it is not allowed.

    Args:
        costs: per unit of eta, infinite ones turned into caps.

    Example:
        >>> unbiased_threshold(Costs(np.array([0.5, 0.5]), np.array([3.0, 3.0])))
        inf
    """
    ends = marginal_ends(costs)
    if ends is None:
        return 0.0
    spread = ends[0] - ends[1]
    noise = _noise_at(costs.unbiased, costs)
    return _eta_of(noise, spread, costs.clipping_gap) if spread > 0.0 else math.inf


def _noise_at(p: FloatArray, costs: Costs) -> float:
    """Q at these costs."""
    bare = objective_of(p, costs._replace(unbiased=p, clipping_gap=0.0))
    return bare * bare


def _eta_of(noise: float, width: float, bias: float) -> float:
    """The eta at which y - x = 2 F, for Q and y - x per unit of eta."""
    with np.errstate(over="ignore"):
        return float(4.0 * (noise / np.float64(width) + bias) / width)

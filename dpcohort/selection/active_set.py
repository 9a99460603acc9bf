# SPDX-License-Identifier: Apache-2.0
"""Problem 1 without linear costs, floors or caps: the exact answer by its active set.

The conditions of optimality (proof of Proposition 2) say that with two thresholds x < y

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
from typing import NamedTuple

import numpy as np

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.selection.instance import pieces

__all__ = ["ActiveSet", "Fixed", "Ladder", "find_thresholds"]

#: Fewer clients than this are simply sorted.
_SORT_BELOW = 2048

#: Classes reach this many powers of two below the largest marginal cost.
_OCTAVES = 200

#: Classes on each side of the estimated threshold whose clients are put in order.
_MARGIN = 2


class Fixed(NamedTuple):
    """What is known before the ladder is climbed: sums over clients that are already decided."""

    forced_mass: float = 0.0  # probability of infinite-cost clients, which has to move
    public: bool = False  # somebody takes any mass at no cost
    clipping_gap: float = 0.0  # g0
    low_inverse: float = 0.0  # sum of 1/a and of u over clients known to be raised
    low_mass: float = 0.0
    high_inverse: float = 0.0  # the same for clients known to be lowered
    high_mass: float = 0.0
    middle_work: float = 0.0  # sum of a u^2 over clients known to stay


class ActiveSet(NamedTuple):
    """The first ``low`` clients of the ladder are raised, those from ``high`` on are lowered."""

    low: int
    high: int
    objective: float  # F*
    lower: float  # x
    upper: float  # y


class Ladder:
    """Clients, or classes of them, in rising order of marginal cost, with running sums.

    Everything is per unit of eta: with costs ``a = eta c`` the order does not depend on eta, so one
    ladder serves every eta.

    Example:
        >>> cost, mass = np.array([1.0, 400.0]), np.array([0.5, 0.5])
        >>> ladder = Ladder(cost * mass, mass, 1 / cost, cost * mass**2, Fixed())
        >>> ladder.solve().low, ladder.solve().high
        (1, 1)
    """

    def __init__(
        self,
        marginal: FloatArray,
        mass: FloatArray,
        inverse: FloatArray,
        work: FloatArray,
        fixed: Fixed,
    ) -> None:
        self.marginal, self.mass, self.inverse, self.work = marginal, mass, inverse, work
        self.fixed = fixed
        self.size = marginal.size
        self.low_inverse = _running(inverse, fixed.low_inverse)
        self.low_mass = _running(mass, fixed.low_mass)
        self.high_inverse = _running(inverse[::-1], fixed.high_inverse)[::-1]
        self.high_mass = _running(mass[::-1], fixed.high_mass + fixed.forced_mass)[::-1]
        self.low_work = _running(work, 0.0)
        # Moved mass when x, respectively y, stands exactly at a client's marginal cost.
        self.raised = marginal * self.low_inverse[:-1] - self.low_mass[:-1]
        self.lowered = self.high_mass[:-1] - marginal * self.high_inverse[:-1]

    @classmethod
    def by_sorting(
        cls, marginal: FloatArray, mass: FloatArray, inverse: FloatArray, fixed: Fixed
    ) -> Ladder:
        """The ladder of clients given in any order."""
        order = marginal.argsort()
        marginal, mass = marginal[order], mass[order]
        return cls(marginal, mass, inverse[order], marginal * mass, fixed)

    def solve(self, eta: float = 1.0) -> ActiveSet:
        """The active set at costs ``eta c``, by bisection and then exactly."""
        low, high = self._search(eta)
        return self.settle(low, high, eta)

    def settle(self, low: int, high: int, eta: float = 1.0) -> ActiveSet:
        """From a guess of the sets to sets that reproduce themselves, with carefully rounded sums.

        Running sums may put a client at a threshold on the wrong side by rounding; the closed form
        puts it back. A set that reproduces itself satisfies the conditions of optimality.
        """
        for _ in range(24):
            answer = self._closed_form(low, high, eta)
            scale = 1.0 / eta
            if self.fixed.public:
                new_low = 0
            else:
                new_low = int(self.marginal.searchsorted(answer.lower * scale, "left"))
            new_high = int(self.marginal.searchsorted(answer.upper * scale, "right"))
            if (new_low, new_high) == (low, high):
                break
            low, high = new_low, max(new_high, new_low)
        return answer

    def lower_at(self, moved: float) -> tuple[int, float]:
        """Set L and threshold x (per unit of eta) once the mass ``moved`` has been added."""
        if self.fixed.public:
            return 0, 0.0
        low = int(self.raised.searchsorted(moved, "left"))
        while self.low_inverse[low] == 0.0:
            low += 1
        return low, (moved + float(self.low_mass[low])) / float(self.low_inverse[low])

    def upper_at(self, moved: float) -> tuple[int, float]:
        """Set H and threshold y (per unit of eta) once the mass ``moved`` has been taken away."""
        high = self.size - int(self.lowered[::-1].searchsorted(moved, "left"))
        if self.high_inverse[high] == 0.0:
            return high, float(self.marginal[-1])
        return high, (float(self.high_mass[high]) - moved) / float(self.high_inverse[high])

    def prices_at(self, moved: float) -> tuple[float, float]:
        """X and y (per unit of eta) for a given moved mass, with carefully rounded sums."""
        fixed = self.fixed
        low, lower = self.lower_at(moved)
        if not fixed.public:
            mass = fixed.low_mass + float(self.mass[:low].sum())
            lower = (moved + mass) / (fixed.low_inverse + float(self.inverse[:low].sum()))
        high, upper = self.upper_at(moved)
        if high < self.size:
            mass = fixed.high_mass + fixed.forced_mass + float(self.mass[high:].sum())
            upper = (mass - moved) / (fixed.high_inverse + float(self.inverse[high:].sum()))
        return lower, upper

    def turning_points(self) -> tuple[FloatArray, FloatArray]:
        """Every eta at which a client begins to move, and the mass that has moved by then.

        Where both thresholds stand at known places, ``eta (y - x) = 2 F`` solves for eta:
        ``eta = 4 (Q + (y - x) G) / (y - x)^2``, with Q per unit of eta.
        """
        moved = np.unique(np.concatenate([self.raised, self.lowered]))
        moved = moved[moved >= self.fixed.forced_mass]
        if self.fixed.public:
            low = np.zeros(moved.size, dtype=np.int64)
            lower = np.zeros(moved.size)
        else:
            first = 0 if self.low_inverse[0] > 0.0 else 1
            low = np.maximum(self.raised.searchsorted(moved, "left"), first)
            lower = (moved + self.low_mass[low]) / self.low_inverse[low]
        high = self.size - self.lowered[::-1].searchsorted(moved, "left")
        inverse = self.high_inverse[high]
        nobody = inverse == 0.0
        upper = (self.high_mass[high] - moved) / np.where(nobody, 1.0, inverse)
        upper = np.where(nobody, self.marginal[-1], upper)
        width = upper - lower
        noise = self.fixed.middle_work + self.low_work[high] - self.low_work[low]
        noise = noise + lower**2 * self.low_inverse[low] + upper**2 * inverse
        apart = width > 1e-12 * upper
        moved, width, noise = moved[apart], width[apart], np.maximum(noise[apart], 0.0)
        eta = 4.0 * (noise + width * (self.fixed.clipping_gap + 2.0 * moved)) / width**2
        return np.maximum.accumulate(eta) if eta.size else eta, moved

    def _search(self, eta: float) -> tuple[int, int]:
        """The sets by bisection on the sign of y - x - 2 F, which falls as mass moves."""
        start, high = 0, self.size
        while start < high:
            middle = (start + high) // 2
            moved, upper = float(self.lowered[middle]), float(self.marginal[middle])
            low, lower = self.lower_at(moved)
            if self._excess(low, middle, lower, upper, moved, eta) > 0.0:
                high = middle
            else:
                start = middle + 1
        if self.fixed.public:
            return 0, high
        if self.high_inverse[high] == 0.0:
            return self.lower_at(float(self.high_mass[high]))[0], high
        # H is known; the same bisection over the steps of x that remain possible.
        first = self.lower_at(float(self.lowered[high]))[0] if high < self.size else 0
        last = self.lower_at(float(self.lowered[high - 1]))[0] if high > 0 else self.size
        while first < last:
            middle = (first + last) // 2
            moved, lower = float(self.raised[middle]), float(self.marginal[middle])
            upper = (float(self.high_mass[high]) - moved) / float(self.high_inverse[high])
            if self._excess(middle, high, lower, upper, moved, eta) > 0.0:
                first = middle + 1
            else:
                last = middle
        return first, high

    def _excess(
        self, low: int, high: int, lower: float, upper: float, moved: float, eta: float
    ) -> float:
        """How far y - x exceeds 2 F: positive while moving more mass still pays."""
        if lower >= upper:
            return -1.0
        bias = self.fixed.clipping_gap + 2.0 * moved
        noise = self.fixed.middle_work + float(self.low_work[high]) - float(self.low_work[low])
        noise += lower * lower * float(self.low_inverse[low])
        noise += upper * upper * float(self.high_inverse[high])
        root = math.sqrt(max(bias * bias + eta * noise, 0.0))
        return eta * (upper - lower) - 2.0 * (bias + root)

    def _closed_form(self, low: int, high: int, eta: float) -> ActiveSet:
        """F*, x and y for given sets: (1 + 4 rho) f^2 - 2 (2 kappa + g0) f - q = 0."""
        fixed = self.fixed
        high_inverse = (fixed.high_inverse + float(self.inverse[high:].sum())) / eta
        high_mass = fixed.high_mass + fixed.forced_mass + float(self.mass[high:].sum())
        work = eta * (fixed.middle_work + float(self.work[low:high].sum()))
        if fixed.public:
            rho, kappa = high_inverse, high_mass
        else:
            low_inverse = (fixed.low_inverse + float(self.inverse[:low].sum())) / eta
            low_mass = fixed.low_mass + float(self.mass[:low].sum())
            inverse, mass = low_inverse + high_inverse, low_mass + high_mass
            if inverse > 0.0:
                rho = low_inverse * (high_inverse / inverse)
                kappa = high_mass - mass * (high_inverse / inverse)
                work += mass * (mass / inverse)
            else:
                rho = kappa = 0.0
        square, half = 1.0 + 4.0 * rho, 2.0 * kappa + fixed.clipping_gap
        objective = (half + math.hypot(half, math.sqrt(square * work))) / square
        if fixed.public:
            return ActiveSet(low, high, objective, 0.0, 2.0 * objective)
        if inverse == 0.0:
            middle = 0.5 * eta * float(self.marginal[0] + self.marginal[-1])
            return ActiveSet(low, high, objective, middle - objective, middle + objective)
        lower = (mass - 2.0 * objective * high_inverse) / inverse
        return ActiveSet(low, high, objective, lower, lower + 2.0 * objective)


def find_thresholds(mass: FloatArray, noise: FloatArray, fixed: Fixed) -> ActiveSet | None:
    """F*, x and y for clients with finite positive noise costs; None if nobody need move.

    Args:
        mass: ``u``.
        noise: ``a``.
        fixed: public clients, forced mass and clipping gap.

    Example:
        >>> answer = find_thresholds(np.array([0.5, 0.5]), np.array([1.0, 400.0]), Fixed())
        >>> round(answer.upper - answer.lower - 2 * answer.objective, 12)
        0.0
    """
    bottom, top, work = _survey(mass, noise)
    if fixed.forced_mass == 0.0:
        gap = fixed.clipping_gap
        objective = gap + math.hypot(gap, math.sqrt(work))
        if top - (0.0 if fixed.public else bottom) <= 2.0 * objective:
            return None
    if mass.size >= _SORT_BELOW:
        answer = _by_classes(mass, noise, bottom, top, fixed)
        if answer is not None:
            return answer
    return Ladder.by_sorting(noise * mass, mass, 1.0 / noise, fixed).solve()


def _survey(mass: FloatArray, noise: FloatArray) -> tuple[float, float, float]:
    """Smallest and largest ``a u``, and the sum of ``a u^2``."""
    bottom, top, work = math.inf, 0.0, 0.0
    for part in pieces(mass.size):
        marginal = noise[part] * mass[part]
        bottom, top = min(bottom, float(marginal.min())), max(top, float(marginal.max()))
        marginal *= mass[part]
        work += float(marginal.sum())
    return bottom, top, work


def _by_classes(
    mass: FloatArray, noise: FloatArray, bottom: float, top: float, fixed: Fixed
) -> ActiveSet | None:
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
    masses, inverses, works = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    for part in pieces(mass.size):
        u, a = mass[part], noise[part]
        marginal = a * u
        keys = marginal.view(np.int64) >> shift
        keys -= first
        np.maximum(keys, 0, out=keys)
        masses += np.bincount(keys, weights=u, minlength=classes)
        inverses += np.bincount(keys, weights=1.0 / a, minlength=classes)
        marginal *= u
        works += np.bincount(keys, weights=marginal, minlength=classes)
    borders = ((np.arange(classes + 1, dtype=np.int64) + first) << shift).view(np.float64)
    borders[0] = min(borders[0], bottom)
    low, high = Ladder(borders[:-1], masses, inverses, works, fixed)._search(1.0)
    low_from, low_to = max(low - 1 - _MARGIN, 0), min(low + _MARGIN, classes)
    high_from, high_to = max(high - 1 - _MARGIN, 0), min(high + _MARGIN, classes)
    if fixed.public:
        low_from = low_to = 0
    return _between(
        mass,
        noise,
        fixed,
        (float(borders[low_from]), float(borders[low_to])),
        (float(borders[high_from]), float(borders[high_to])),
    )


def _between(
    mass: FloatArray,
    noise: FloatArray,
    fixed: Fixed,
    low_bracket: tuple[float, float],
    high_bracket: tuple[float, float],
) -> ActiveSet | None:
    """The exact answer if x and y lie in these half-open brackets, None if they do not."""
    if low_bracket[1] >= high_bracket[0]:
        low_bracket = high_bracket = (low_bracket[0], high_bracket[1])
    sums: list[tuple[float, ...]] = []
    open_marginal, open_mass, open_noise = [], [], []
    for part in pieces(mass.size):
        u, a = mass[part], noise[part]
        marginal = a * u
        raised = marginal < low_bracket[0]
        lowered = marginal >= high_bracket[1]
        staying: BoolArray = (marginal >= low_bracket[1]) & (marginal < high_bracket[0])
        undecided = ~(raised | lowered | staying)
        open_marginal.append(marginal[undecided])
        open_mass.append(u[undecided])
        open_noise.append(a[undecided])
        inverse = 1.0 / a
        marginal *= u
        chosen = ((inverse, raised), (u, raised), (inverse, lowered), (u, lowered))
        sums.append(tuple(float(x[mask].sum()) for x, mask in (*chosen, (marginal, staying))))
    totals = [math.fsum(column) for column in zip(*sums, strict=True)]
    known = fixed._replace(
        low_inverse=totals[0],
        low_mass=totals[1],
        high_inverse=totals[2],
        high_mass=totals[3],
        middle_work=totals[4],
    )
    marginal, mass, noise = (np.concatenate(x) for x in (open_marginal, open_mass, open_noise))
    ladder = Ladder.by_sorting(marginal, mass, 1.0 / noise, known)
    answer = ladder.solve() if ladder.size else ladder.settle(0, 0)
    low_ok = fixed.public or low_bracket[0] <= answer.lower <= low_bracket[1]
    high_ok = high_bracket[0] <= answer.upper <= high_bracket[1]
    # A threshold beyond the last client decides nothing, wherever it is.
    high_ok = high_ok or (answer.upper > high_bracket[1] and known.high_inverse == 0.0)
    return answer if low_ok and high_ok else None


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

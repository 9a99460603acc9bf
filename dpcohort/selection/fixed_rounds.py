# SPDX-License-Identifier: Apache-2.0
"""Corollary 2 for a given selection: the T that makes Theorem 2's bound least, from one cubic.

With x = sqrt(T), G = G^select,clip, Q = 2 L G^DP and R = F(w_1) - F* + L B1^2 / 2 the bound is

    (B1/2) (G + sqrt(G^2 + Q x)) + sqrt(R / x).

Its derivative vanishes where B1^2 Q^2 x^3 = 4 R (G^2 + Q x). The coefficients of this cubic change
sign once, so it has one positive root (Descartes); before it the bound falls, after it it grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpcohort.selection.bound import nonconvex_parts

__all__ = ["LARGEST_STEPS", "FixedBest", "SelectionCurve"]

#: Beyond this T nothing is searched; certificates cover it all the same.
LARGEST_STEPS = 10**60
#: Relative rounding error that the certificate gives away.
_ROUNDING = 1e-14


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

# SPDX-License-Identifier: Apache-2.0
"""The free constant Gamma of Theorem 1, chosen to make the bound least.

As a function of Gamma the bound of Theorem 1 is, up to a constant,

    h(Gamma) = sqrt(a + b Gamma) + sqrt(c Gamma) + sqrt(d + g / Gamma + m Gamma),

with all coefficients at least 0. With Gamma = e^s each radicand is a sum of exponentials of
affine functions of s, hence log-convex; so is its square root, and log-convex functions are
convex. So h is convex in s = ln Gamma: one minimum, and tangents are lower bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["BalanceCurve", "BestBalance", "best_balance"]

#: ln Gamma is searched in -300..300 (130 decades either way), where nothing can overflow.
_LARGEST_LOG = 300.0
#: Relative rounding error that the certificate gives away.
_ROUNDING = 1e-14


@dataclass(frozen=True, kw_only=True)
class BalanceCurve:
    """h(Gamma) = sqrt(a + b Gamma) + sqrt(c Gamma) + sqrt(d + g / Gamma + m Gamma).

    Attributes:
        start: a, what the start of training leaves whatever Gamma is.
        start_growth: b, how the start's part grows with Gamma.
        clipping_growth: c, how the clipping's part grows.
        steady: d, the selection's and the noise's part whatever Gamma is.
        selection_decay: g, the part of the selection that a large Gamma takes away.
        noise_growth: m, how the noise's part grows.

    Example:
        >>> curve = BalanceCurve(start=1, start_growth=0, clipping_growth=0, steady=2,
        ...                      selection_decay=1, noise_growth=1)
        >>> curve.value(1.0)
        3.0
    """

    start: float
    start_growth: float
    clipping_growth: float
    steady: float
    selection_decay: float
    noise_growth: float

    def parts(self, balance: float) -> tuple[float, float, float]:
        """The three roots at Gamma = balance; 0 and infinity mean the limits."""
        decayed = self.selection_decay / balance if self.selection_decay > 0 else 0.0
        return (
            math.sqrt(self.start + _grown(self.start_growth, balance)),
            math.sqrt(_grown(self.clipping_growth, balance)),
            math.sqrt(self.steady + decayed + _grown(self.noise_growth, balance)),
        )

    def value(self, balance: float) -> float:
        """h(Gamma)."""
        return math.fsum(self.parts(balance))

    def slope(self, balance: float) -> float:
        """Derivative of h by ln Gamma, at 0 < Gamma < infinity."""
        first, second, third = self.parts(balance)
        tilt = self.noise_growth * balance - self.selection_decay / balance
        from_start = self.start_growth * balance / first if first > 0 else 0.0
        return 0.5 * (from_start + second + (tilt / third if third > 0 else 0.0))


@dataclass(frozen=True, kw_only=True)
class BestBalance:
    """The Gamma that makes the bound least.

    Attributes:
        balance: Gamma; 0.0 or infinity where the least value is only approached there (the bound
            then holds with the limit, since it holds for every Gamma above 0).
        value: h at that Gamma.
        lower_bound: no Gamma gives less than this.
    """

    balance: float
    value: float
    lower_bound: float


def best_balance(curve: BalanceCurve) -> BestBalance:
    """The global minimum of h over Gamma > 0, with its certificate.

    The sign of the slope in ln Gamma is bisected; it changes once, because h is convex there. The
    lower bound is the tangent at the left end of the last bracket, at the bracket's right end.

    Example:
        >>> curve = BalanceCurve(start=0, start_growth=0, clipping_growth=0, steady=1,
        ...                      selection_decay=4, noise_growth=1)
        >>> best = best_balance(curve)      # 1 + 4 / Gamma + Gamma is least at 2, where it is 5
        >>> round(best.balance, 6), round(best.value**2, 12)
        (2.0, 5.0)
    """
    growing = curve.start_growth + curve.clipping_growth + curve.noise_growth > 0
    if curve.selection_decay == 0 or not growing:
        # No part falls with Gamma, or none grows: the infimum is a limit, in closed form.
        end = 0.0 if curve.selection_decay == 0 else math.inf
        value = curve.value(end)
        return BestBalance(balance=end, value=value, lower_bound=value * (1 - _ROUNDING))
    low, high = _bracket(curve)
    inside = curve.slope(math.exp(low)) <= 0 <= curve.slope(math.exp(high))
    while True:
        middle = 0.5 * (low + high)
        if high - low <= 1e-13 * max(1.0, abs(middle)) or not low < middle < high:
            break
        if curve.slope(math.exp(middle)) < 0:
            low = middle
        else:
            high = middle
    tangent = curve.value(math.exp(low)) + curve.slope(math.exp(low)) * (high - low)
    floor = math.sqrt(curve.start) + math.sqrt(curve.steady)  # below h for every Gamma
    balance = math.exp(middle)
    return BestBalance(
        balance=balance,
        value=curve.value(balance),
        lower_bound=(max(tangent, floor) if inside else floor) * (1 - _ROUNDING),
    )


def _bracket(curve: BalanceCurve) -> tuple[float, float]:
    """Logarithms of Gamma around the minimum: the slope is at most 0 at the first, not the second.

    Where the minimum lies beyond the searched range, its end stands in.
    """
    low, high, width = -1.0, 1.0, 1.0
    while curve.slope(math.exp(high)) < 0 and high < _LARGEST_LOG:
        low, high, width = high, min(high + 2 * width, _LARGEST_LOG), 2 * width
    width = 1.0
    while curve.slope(math.exp(low)) > 0 and low > -_LARGEST_LOG:
        low, high, width = max(low - 2 * width, -_LARGEST_LOG), low, 2 * width
    return low, high


def _grown(rate: float, balance: float) -> float:
    """Rate times Gamma, where a rate of 0 stays 0 also in the limit of infinite Gamma."""
    return rate * balance if rate > 0 else 0.0

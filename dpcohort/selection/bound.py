# SPDX-License-Identifier: Apache-2.0
"""Theorems 1 and 2 and Corollary 1 as calculators: every term, and whether the bound says anything.

Two constants differ from the printed ones, both proved (docs/paper-map.md): the clipping term of
Theorem 1 has 9 Gamma, not 18 Gamma, and both theorems need C <= B1 or max(B1, C) in place of B1.
``as_printed=True`` gives the paper's statement, word for word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from dpcohort._validate import number, whole_number
from dpcohort.selection.error_terms import Constants, ErrorTerms, convexity, error_terms

__all__ = [
    "BalanceCurve",
    "BestBalance",
    "NonconvexBound",
    "StronglyConvexBound",
    "best_balance",
    "nonconvex_bound",
    "nonconvex_parts",
    "strongly_convex_bound",
    "strongly_convex_limit",
]


@dataclass(frozen=True, kw_only=True)
class NonconvexBound:
    """Theorem 2, term by term: a bound on the root mean square of the gradient norm.

    Attributes:
        total_steps: T.
        step_size: the constant step size that the theorem requires, B1 / (C sqrt(T)).
        errors: G^select,clip and G^DP with their parts.
        non_vanishing: the selection's and the noise's part, growing like T^(1/4).
        vanishing: the start's part, falling like T^(-1/4).
        total: their sum, the bound.
        sharper_total: the same bound before the two parts are pulled apart by
            sqrt(x + y) <= sqrt(x) + sqrt(y); also proved, never larger.
        trivial: B1, which Assumption 3 gives without any theorem.
    """

    total_steps: int
    step_size: float
    errors: ErrorTerms
    non_vanishing: float
    vanishing: float
    total: float
    sharper_total: float
    trivial: float

    @property
    def squared_total(self) -> float:
        """Bound on the mean squared gradient norm."""
        return self.total**2

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than Assumption 3."""
        return self.total >= self.trivial

    @property
    def sentence(self) -> str:
        """What the bound says, in words."""
        claim = f"Over {self.total_steps} steps the root mean square gradient norm"
        if self.vacuous:
            return (
                f"This bound says nothing. {claim} is bounded by {self.total:.4g}, but no gradient "
                f"is longer than B1 = {self.trivial:.4g} by Assumption 3."
            )
        return f"{claim} is at most {self.total:.4g}; Assumption 3 alone gives {self.trivial:.4g}."


@dataclass(frozen=True, kw_only=True)
class StronglyConvexBound:
    """Theorem 1 or Corollary 1, term by term: a bound on sqrt(E[F(w_{T+1}) - F*]).

    Attributes:
        total_steps: T; infinity for Corollary 1.
        step_scale: beta of the step size beta / (gamma + t).
        step_offset: gamma of that step size.
        errors: G^select,clip, G^DP and G^b,clip with their parts.
        balance: Gamma; 0.0 or infinity where the least bound is only approached there.
        initial_error: Z.
        vanishing: Z / sqrt(gamma + T).
        clipping: the root with G^b,clip, which no number of steps removes.
        selection_and_privacy: the bracket with G^select,clip and G^DP.
        total: their sum, the bound.
        lower_bound: no Gamma gives a total below this; equal to ``total`` for a given Gamma.
        sharper_total: root of the quadratic inequality (equ: quad) itself, before its parts are
            pulled apart, at its own best Gamma; also proved, never larger.
        trivial: B1^2 / (2 mu), which Assumptions 2 and 3 give for F(w) - F* without any theorem.
        initial_gap: F(w_1) - F*.
    """

    total_steps: float
    step_scale: float
    step_offset: float
    errors: ErrorTerms
    balance: float
    initial_error: float
    vanishing: float
    clipping: float
    selection_and_privacy: float
    total: float
    lower_bound: float
    sharper_total: float
    trivial: float
    initial_gap: float

    @property
    def non_vanishing(self) -> float:
        """What stays however long training goes on."""
        return self.clipping + self.selection_and_privacy

    @property
    def squared_total(self) -> float:
        """Bound on E[F(w_{T+1}) - F*]."""
        return self.total**2

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than Assumptions 2 and 3."""
        return self.squared_total >= self.trivial

    @property
    def sentence(self) -> str:
        """What the bound says, in words."""
        when = "In the limit" if math.isinf(self.total_steps) else f"After {self.total_steps} steps"
        claim = f"{when} the expected loss is within {self.squared_total:.4g} of the best"
        if self.vacuous:
            return (
                f"This bound says nothing. {claim}, but every model is within B1^2/(2 mu) = "
                f"{self.trivial:.4g} by Assumptions 2 and 3."
            )
        if self.squared_total >= self.initial_gap:
            return (
                f"{claim}; it started within {self.initial_gap:.4g}, so the bound does not show "
                f"that training helps."
            )
        return f"{claim}; it started within {self.initial_gap:.4g}."


def nonconvex_parts(
    *,
    gradient_bound: float,
    selection_error: float,
    noise: float,
    start: float,
    root_steps: float,
) -> tuple[float, float, float]:
    """Theorem 2's non-vanishing and vanishing error, and the bound before they are pulled apart.

    The proof ends in y^2 <= B1 G y + start / x + B1^2 noise x / 4, with x = sqrt(T).

    Args:
        gradient_bound: B1.
        selection_error: G^select,clip.
        noise: 2 L G^DP.
        start: F(w_1) - F* + L B1^2 / 2.
        root_steps: sqrt(T).

    Example:
        >>> nonconvex_parts(gradient_bound=2, selection_error=0, noise=1, start=9, root_steps=9)
        (3.0, 1.0, 3.1622776601683795)
    """
    inner = selection_error**2 + noise * root_steps
    half = 0.5 * gradient_bound
    sharper = half * selection_error + math.sqrt(half**2 * inner + start / root_steps)
    return half * (selection_error + math.sqrt(inner)), math.sqrt(start / root_steps), sharper


def nonconvex_bound(
    constants: Constants,
    *,
    probabilities: ArrayLike,
    unbiased: ArrayLike,
    noise_levels: ArrayLike,
    dimension: int,
    total_steps: int,
    linear_levels: ArrayLike | None = None,
    as_printed: bool = False,
) -> NonconvexBound:
    """Theorem 2 (equ: convergence_smooth): non-convex objectives, step size B1 / (C sqrt(T)).

    Args:
        constants: Assumptions 1, 3 and 4 in numbers.
        probabilities: p^s, the selection.
        unbiased: p^u, proportional to the sizes.
        noise_levels: V_k, of the paper or of the tight accountant.
        dimension: D, number of trained parameters.
        total_steps: T, global rounds times local steps.
        linear_levels: W_k of the exact noise model at this T, see
            :func:`dpcohort.selection.error_terms.privacy_error`.
        as_printed: keep B1 where the proof needs max(B1, C); false for C > B1.

    Example:
        >>> constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=1)
        >>> bound = nonconvex_bound(constants, probabilities=[0.5, 0.5], unbiased=[0.5, 0.5],
        ...                         noise_levels=[0.0, 1e-7], dimension=1000, total_steps=10_000)
        >>> round(bound.non_vanishing, 4), round(bound.vanishing, 4), bound.vacuous
        (0.0354, 0.1225, False)
        >>> bound.sentence
        'Over 10000 steps the root mean square gradient norm is at most 0.1578; Assumption 3
        alone gives 1.'
    """
    steps = whole_number("total_steps", total_steps, at_least=1)
    errors = error_terms(
        constants,
        probabilities=probabilities,
        unbiased=unbiased,
        noise_levels=noise_levels,
        dimension=dimension,
        linear_levels=linear_levels,
    )
    bound = constants.gradient_bound if as_printed else constants.working_gradient_bound
    non_vanishing, vanishing, sharper = nonconvex_parts(
        gradient_bound=bound,
        selection_error=errors.selection_error,
        noise=2.0 * constants.smoothness * errors.privacy_error,
        start=constants.initial_gap + 0.5 * constants.smoothness * bound**2,
        root_steps=math.sqrt(steps),
    )
    return NonconvexBound(
        total_steps=steps,
        step_size=bound / (constants.clip * math.sqrt(steps)),
        errors=errors,
        non_vanishing=non_vanishing,
        vanishing=vanishing,
        total=non_vanishing + vanishing,
        sharper_total=sharper,
        trivial=float(constants.gradient_bound),
    )


def strongly_convex_bound(
    constants: Constants,
    *,
    probabilities: ArrayLike,
    unbiased: ArrayLike,
    noise_levels: ArrayLike,
    dimension: int,
    total_steps: int,
    linear_levels: ArrayLike | None = None,
    balance: float | None = None,
    as_printed: bool = False,
) -> StronglyConvexBound:
    """Theorem 1 (equ: convergence): strongly convex objectives, step size beta / (gamma + t).

    Args:
        constants: Assumptions 1-4 in numbers, with ``strong_convexity``.
        probabilities: p^s, the selection.
        unbiased: p^u, proportional to the sizes.
        noise_levels: V_k, of the paper or of the tight accountant.
        dimension: D, number of trained parameters.
        total_steps: T, global rounds times local steps.
        linear_levels: W_k of the exact noise model at this T.
        balance: Gamma; the one that makes the bound least when not given.
        as_printed: 18 Gamma in the clipping term and beta > B1 / (C mu), as the paper prints.

    Example:
        >>> constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=0.4,
        ...                       strong_convexity=0.5)
        >>> bound = strongly_convex_bound(constants, probabilities=[0.5, 0.5], unbiased=[0.5, 0.5],
        ...                               noise_levels=[0, 1e-6], dimension=1000, total_steps=1000)
        >>> bound.balance, round(bound.vanishing, 4), round(bound.non_vanishing, 4)
        (0.0, 0.0489, 0.0223)
        >>> bound.vacuous
        False
    """
    steps = whole_number("total_steps", total_steps, at_least=1)
    errors = error_terms(
        constants,
        probabilities=probabilities,
        unbiased=unbiased,
        noise_levels=noise_levels,
        dimension=dimension,
        linear_levels=linear_levels,
    )
    return _strongly_convex(constants, errors, steps, balance, as_printed=as_printed)


def strongly_convex_limit(
    constants: Constants,
    *,
    probabilities: ArrayLike,
    unbiased: ArrayLike,
    noise_levels: ArrayLike,
    dimension: int,
    balance: float | None = None,
    as_printed: bool = False,
) -> StronglyConvexBound:
    """Corollary 1 (inequality: final gap inf): Theorem 1 as T goes to infinity.

    The corollary prints B for B1. The linear part of the exact noise model goes to 0 in this
    limit, so there is none to give.

    Example:
        >>> constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=0.4,
        ...                       strong_convexity=0.5)
        >>> limit = strongly_convex_limit(constants, probabilities=[0.5, 0.5], unbiased=[0.5, 0.5],
        ...                               noise_levels=[0, 1e-6], dimension=1000)
        >>> round(limit.total, 6)
        0.022361
    """
    errors = error_terms(
        constants,
        probabilities=probabilities,
        unbiased=unbiased,
        noise_levels=noise_levels,
        dimension=dimension,
    )
    return _strongly_convex(constants, errors, math.inf, balance, as_printed=as_printed)


def _strongly_convex(
    constants: Constants,
    errors: ErrorTerms,
    steps: float,
    balance: float | None,
    *,
    as_printed: bool,
) -> StronglyConvexBound:
    mu, distance, beta = convexity(constants, as_printed=as_printed)
    smooth, clip, gamma = constants.smoothness, constants.clip, constants.step_offset
    endless = math.isinf(steps)
    share = 1.0 if endless else steps / (gamma + steps)  # T / (gamma + T)
    left = 0.0 if endless else 1.0 / (gamma + steps)
    sampling = 0.5 * beta**2 * smooth * clip**2 * share
    start = gamma * constants.initial_gap + sampling  # Z^2 = start + start_growth * Gamma
    start_growth = 9.0 * (0.5 * smooth * gamma * distance**2 + sampling)
    weight = 0.5 * smooth * (beta * clip * share) ** 2
    selection, privacy = errors.selection_error**2, errors.privacy_error
    curve = BalanceCurve(
        start=left * start,
        start_growth=left * start_growth,
        clipping_growth=(18.0 if as_printed else 9.0)
        * (beta * smooth * share * constants.gradient_bound * clip / mu)
        * errors.biased_clipping_error,
        steady=weight * (selection + privacy),
        selection_decay=weight * selection,
        noise_growth=9.0 * weight * privacy,
    )
    base = math.sqrt(weight) * errors.selection_error
    if balance is None:
        best = best_balance(curve)
        chosen, lower = best.balance, base + best.lower_bound
    else:
        chosen = number("balance", balance, above=0)
        lower = base + curve.value(chosen)
    vanishing, clipping, mixed = curve.parts(chosen)
    total = math.fsum((vanishing, clipping, base, mixed))
    # A + B Gamma + E / Gamma is least at Gamma = sqrt(E / B), where it is A + 2 sqrt(B E).
    growth = curve.start_growth + curve.clipping_growth + curve.noise_growth
    unsplit = curve.start + curve.steady + 2.0 * math.sqrt(growth * curve.selection_decay)
    return StronglyConvexBound(
        total_steps=steps,
        step_scale=beta,
        step_offset=float(gamma),
        errors=errors,
        balance=chosen,
        initial_error=math.sqrt(start + start_growth * chosen),
        vanishing=vanishing,
        clipping=clipping,
        selection_and_privacy=base + mixed,
        total=total,
        lower_bound=min(lower, total),
        sharper_total=min(base + math.sqrt(unsplit), total),
        trivial=constants.gradient_bound**2 / (2.0 * mu),
        initial_gap=float(constants.initial_gap),
    )


# The free constant Gamma of Theorem 1, chosen to make the bound least.
#
# As a function of Gamma the bound of Theorem 1 is, up to a constant,
#
#     h(Gamma) = sqrt(a + b Gamma) + sqrt(c Gamma) + sqrt(d + g / Gamma + m Gamma),
#
# with all coefficients at least 0. With Gamma = e^s each radicand is a sum of exponentials of
# affine functions of s, hence log-convex; so is its square root, and log-convex functions are
# convex. So h is convex in s = ln Gamma: one minimum, and tangents are lower bounds.


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

# SPDX-License-Identifier: Apache-2.0
"""The paper's theorems and corollaries as calculators: every term, and whether they say anything.

Two constants differ from the printed ones, both proved (docs/paper-map.md): the clipping term of
Theorem 1 has 9 Gamma, not 18 Gamma, and both theorems need C <= B1 or max(B1, C) in place of B1.
``as_printed=True`` gives the paper's statement, word for word.

Corollary 2, the number of steps T with the least bound, is proved globally. For a given selection
see :class:`SelectionCurve`. In :func:`best_total_steps` the selection is chosen together with T:
with x = sqrt(T) the bound is (B1/2) v(x) + sqrt(R / x), where R = F(w_1) - F* + L B1^2 / 2 and v(x)
is the least value of Problem 1 at eta = 2 L x. Each selection's value is concave in x and so is
their minimum; the bound may have several local minima. On an interval v is above its chord, and a
chord plus sqrt(R / x) is convex with its minimum in closed form: a lower bound, hence a branch and
bound with certificate.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array, number, whole_number
from dpcohort.errors import InputError
from dpcohort.lab.error_terms import (
    Constants,
    ErrorTerms,
    checked_distribution,
    convexity,
    error_terms,
)
from dpcohort.selection.solver import solve_selection

__all__ = [
    "LARGEST_STEPS",
    "BalanceCurve",
    "BestBalance",
    "BestSteps",
    "FixedBest",
    "NonconvexBound",
    "SelectionCurve",
    "StronglyConvexBound",
    "best_balance",
    "best_total_steps",
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
            :func:`dpcohort.lab.error_terms.privacy_error`.
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


#: Intervals of relative width below this are not divided.
_NARROWEST = 1e-14
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
        if where - left.root <= _NARROWEST * where:  # no width left for a chord; v grows with x
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
        tied = min(values.values()) * (1 + _NARROWEST)
        steps = next(t for t, value in values.items() if value <= tied)
        return FixedBest(
            total_steps=steps,
            bound=values[steps],
            lower_bound=min(least, *values.values()) * (1 - _NARROWEST),
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

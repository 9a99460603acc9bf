# SPDX-License-Identifier: Apache-2.0
"""The paper's theorems and corollaries as calculators: every term, and whether they say anything.

Two constants differ from the printed ones, both proved (paper-map.md in docs): the clipping term
of Theorem 1 has 9 Gamma, not 18 Gamma, and both theorems need C <= B1 or max(B1, C) in place of B1.
``as_printed=True`` gives the paper's statement, word for word.

Corollary 2, the number of steps T with the least bound, is proved globally: in
:func:`best_total_steps` the selection is chosen together with T. With x = sqrt(T) the bound is
(B1/2) v(x) + sqrt(R / x), where R = F(w_1) - F* + L B1^2 / 2 and v(x) is the least value of
Problem 1 at eta = 2 L x. Each selection's value is concave in x and so is
their minimum; the bound may have several local minima. On an interval v is above its chord, and a
chord plus sqrt(R / x) is convex with its minimum in closed form: a lower bound, hence a branch and
bound with certificate.

They see a selection only through three errors, G^select,clip, G^DP and G^b,clip, and the problem
only through its :class:`Constants`.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dpcohort.errors import InputError
from dpcohort.selection import solve_selection
from dpcohort_lab.checks import FloatArray, number, whole_number


@dataclass(frozen=True, kw_only=True)
class ErrorTerms:
    """The errors that a selection, the clipping and the noise bring into the bounds.

    Attributes:
        selection_gap: 1-norm of p^s - p^u.
        clipping_gap: max_t of the 1-norm of Delta_t.
        biased_clipping_gap: max_t of the 1-norm of Delta_t^b.
        drift: B2 / C.
        privacy_error: G^DP, so that the expected squared norm of the noise is T G^DP C^2.

    Example:
        >>> ErrorTerms(selection_gap=0.5, clipping_gap=0.1, biased_clipping_gap=0.2, drift=0.0,
        ...            privacy_error=3.0).selection_error
        0.6
    """

    selection_gap: float
    clipping_gap: float
    biased_clipping_gap: float
    drift: float
    privacy_error: float

    @property
    def selection_error(self) -> float:
        """G^select,clip: selection gap + clipping gap + B2 / C."""
        return self.selection_gap + self.clipping_gap + self.drift

    @property
    def biased_clipping_error(self) -> float:
        """G^b,clip: clipping gap against the selected objective + B2 / C."""
        return self.biased_clipping_gap + self.drift


def privacy_error(
    probabilities: ArrayLike,
    noise_levels: ArrayLike,
    *,
    dimension: int,
    linear_levels: ArrayLike | None = None,
) -> float:
    """G^DP, the error that the noise brings: D times the sum of p_k^2 V_k.

    The paper replaces the number of draws by its mean. With n draws in all, what a schedule of
    independent draws really adds has V_k (1 - 1/n) in place of V_k and a linear part V_k / n;
    a noise variance C^2 (A_k + V_k steps) adds A_k / (N^select T) to the linear part.

    Args:
        probabilities: p^s.
        noise_levels: V_k; infinite is allowed where the probability is 0.
        dimension: D.
        linear_levels: W_k of the exact model, D times the sum of p_k^2 V_k + p_k W_k.

    Example:
        >>> privacy_error([0.5, 0.5], [1.0, 3.0], dimension=10)
        10.0
        >>> privacy_error([0.5, 0.5], [1.0, 3.0], dimension=10, linear_levels=[0.1, 0.3])
        12.0
    """
    p: FloatArray = np.asarray(probabilities, dtype=np.float64)
    given = (noise_levels, 0.0 if linear_levels is None else linear_levels)
    quadratic, linear = (np.where(p > 0, levels, 0.0) for levels in given)
    return dimension * float(np.sum(p * (p * quadratic + linear)))


def error_terms(
    constants: Constants,
    *,
    probabilities: ArrayLike,
    unbiased: ArrayLike,
    noise_levels: ArrayLike,
    dimension: int,
    linear_levels: ArrayLike | None = None,
) -> ErrorTerms:
    """All the errors of one selection (definitions above Theorem 1).

    Args:
        constants: Assumptions 1-4 in numbers.
        probabilities: p^s, the selection.
        unbiased: p^u, proportional to the sizes.
        noise_levels: V_k, of the paper or of the tight accountant.
        dimension: D, number of trained parameters.
        linear_levels: W_k of the exact noise model, see :func:`privacy_error`.

    Example:
        >>> constants = Constants(smoothness=1, gradient_bound=1, clip=0.5, initial_gap=1,
        ...                       clipping_gap=0.25)
        >>> terms = error_terms(constants, probabilities=[0.5, 0.5], unbiased=[0.25, 0.75],
        ...                     noise_levels=[0.0, 0.1], dimension=10)
        >>> terms.selection_gap, terms.selection_error, terms.privacy_error
        (0.5, 0.75, 0.25)
    """
    return ErrorTerms(
        selection_gap=float(np.abs(np.subtract(probabilities, unbiased)).sum()),
        clipping_gap=float(constants.clipping_gap),
        biased_clipping_gap=float(constants.biased_clipping_gap),
        drift=constants.dissimilarity / constants.clip,
        privacy_error=privacy_error(
            probabilities, noise_levels, dimension=dimension, linear_levels=linear_levels
        ),
    )


#: Relative slack for inputs that sit exactly on a limit the assumptions imply.
_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What Assumptions 1-4 say about the objective, and the steps that Theorem 1 takes.

    Attributes:
        smoothness: L, Lipschitz constant of every client's gradient (Assumption 1).
        gradient_bound: B1, largest norm of a client's gradient (Assumption 3).
        clip: C, the norm to which each record's gradient is clipped.
        initial_gap: F(w_1) - F*, how far training starts from the best loss.
        strong_convexity: mu (Assumption 2); only Theorem 1 and Corollary 1 need it.
        initial_distance: norm of w_1 - w^{b,*}; when not given, the largest that Assumptions 2
            and 3 allow, B1 / mu.
        dissimilarity: B2, how far clipped, selection-weighted gradients at the local models are
            from those at the averaged model (Assumption 4); 0 with one local step.
        clipping_gap: max_t of the 1-norm of Delta_t; 0 when clipping never bites.
        biased_clipping_gap: max_t of the 1-norm of Delta_t^b.
        step_scale: beta of the step size beta / (gamma + t); when not given, the smallest that
            the proof of Theorem 1 allows, max(B1, C) / (C mu), which also gives the least bound.
        step_offset: gamma of that step size.

    Example:
        >>> Constants(smoothness=1, gradient_bound=1, clip=2, initial_gap=1).working_gradient_bound
        2.0
    """

    smoothness: float
    gradient_bound: float
    clip: float
    initial_gap: float
    strong_convexity: float | None = None
    initial_distance: float | None = None
    dissimilarity: float = 0.0
    clipping_gap: float = 0.0
    biased_clipping_gap: float = 0.0
    step_scale: float | None = None
    step_offset: float = 1.0

    def __post_init__(self) -> None:
        for name in ("smoothness", "gradient_bound", "clip"):
            number(name, getattr(self, name), above=0)
        for name in ("initial_gap", "dissimilarity", "clipping_gap", "biased_clipping_gap"):
            number(name, getattr(self, name), at_least=0)
        for name in ("strong_convexity", "step_scale"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), above=0)
        if self.initial_distance is not None:
            number("initial_distance", self.initial_distance, at_least=0)
        number("step_offset", self.step_offset, at_least=1)

    @property
    def working_gradient_bound(self) -> float:
        """max(B1, C): the B1 for which the proofs hold.

        They use that clipping shrinks the full gradient by no more than C / B1, which is a
        shrinking only if C <= B1. A larger B1 satisfies Assumption 3 as well.
        """
        return float(max(self.gradient_bound, self.clip))

    @property
    def fixed_gap(self) -> float:
        """The part of G^select,clip that no selection changes: max_t ||Delta_t||_1 + B2 / C."""
        return self.clipping_gap + self.dissimilarity / self.clip


def convexity(constants: Constants, *, as_printed: bool = False) -> tuple[float, float, float]:
    """mu, the initial distance and beta of Theorem 1, once they agree with Assumptions 1-3.

    Assumptions 2 and 3 cannot both hold on all of R^D (the gradient of a strongly convex function
    grows without bound); where they do hold, F - F* is at most B1^2 / (2 mu) and no two points
    of interest are farther apart than B1 / mu. Numbers that break this describe no objective.

    Args:
        constants: the assumptions in numbers.
        as_printed: require beta > B1 / (C mu) as printed, instead of the proof's
            beta >= max(B1, C) / (C mu).

    Example:
        >>> convexity(Constants(smoothness=1, gradient_bound=2, clip=1, initial_gap=1,
        ...                     strong_convexity=0.5))
        (0.5, 4.0, 4.0)
    """
    mu = constants.strong_convexity
    if mu is None or mu > constants.smoothness:
        raise InputError(
            "strong_convexity",
            given=mu,
            allowed=f"above 0 and at most smoothness = {constants.smoothness:g} (Theorem 1)",
            next_step="For an objective that is not strongly convex use nonconvex_bound.",
        )
    # Strong convexity: F - F* <= |grad F|^2 / (2 mu) and |w - w*| <= |grad F| / mu.
    farthest = constants.gradient_bound / mu
    implied = constants.gradient_bound**2 / (2.0 * mu)
    if constants.initial_gap > implied * (1.0 + _SLACK):
        raise InputError(
            "initial_gap",
            given=constants.initial_gap,
            allowed=f"at most B1^2/(2 mu) = {implied:.6g}, which Assumptions 2 and 3 imply",
            next_step="Raise gradient_bound or lower strong_convexity.",
        )
    distance = farthest if constants.initial_distance is None else constants.initial_distance
    if distance > farthest * (1.0 + _SLACK):
        raise InputError(
            "initial_distance",
            given=distance,
            allowed=f"at most B1/mu = {farthest:.6g}, which Assumptions 2 and 3 imply",
            next_step="Raise gradient_bound or lower strong_convexity.",
        )
    bound = constants.gradient_bound if as_printed else constants.working_gradient_bound
    smallest = bound / (constants.clip * mu)
    beta = smallest if constants.step_scale is None else constants.step_scale
    if beta < smallest or (as_printed and beta == smallest):
        raise InputError(
            "step_scale",
            given=constants.step_scale,
            allowed=f"{'above' if as_printed else 'at least'} {smallest:.6g} (Theorem 1: beta "
            "against max(B1, C) / (C mu))",
            next_step="Leave it out to take the smallest step_scale that is proved.",
        )
    return mu, distance, beta


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


def nonconvex_bound(
    constants: Constants, errors: ErrorTerms, *, total_steps: int, as_printed: bool = False
) -> NonconvexBound:
    """Theorem 2 (equ: convergence_smooth): non-convex objectives, step size B1 / (C sqrt(T)).

    Args:
        constants: Assumptions 1, 3 and 4 in numbers.
        errors: of the selection and the noise.
        total_steps: T, global rounds times local steps.
        as_printed: keep B1 where the proof needs max(B1, C); false for C > B1.

    Example:
        >>> constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=1)
        >>> errors = error_terms(constants, probabilities=[0.5, 0.5], unbiased=[0.5, 0.5],
        ...                      noise_levels=[0.0, 1e-7], dimension=1000)
        >>> bound = nonconvex_bound(constants, errors, total_steps=10_000)
        >>> round(bound.non_vanishing, 4), round(bound.vanishing, 4), bound.vacuous
        (0.0354, 0.1225, False)
        >>> bound.sentence
        'Over 10000 steps the root mean square gradient norm is at most 0.1578; Assumption 3
        alone gives 1.'
    """
    steps = whole_number("total_steps", total_steps, at_least=1)
    bound = constants.gradient_bound if as_printed else constants.working_gradient_bound
    root, half, start = math.sqrt(steps), 0.5 * bound, _start(constants, bound)
    selection = errors.selection_error
    inner = selection**2 + 2.0 * constants.smoothness * errors.privacy_error * root
    non_vanishing = half * (selection + math.sqrt(inner))
    vanishing = math.sqrt(start / root)
    return NonconvexBound(
        total_steps=steps,
        step_size=bound / (constants.clip * root),
        errors=errors,
        non_vanishing=non_vanishing,
        vanishing=vanishing,
        total=non_vanishing + vanishing,
        # The proof ends in y^2 <= B1 G y + R / x + B1^2 Q x / 4; this is its root.
        sharper_total=half * selection + math.sqrt(half**2 * inner + start / root),
        trivial=float(constants.gradient_bound),
    )


def _start(constants: Constants, bound: float) -> float:
    """R = F(w_1) - F* + L B1^2 / 2."""
    return constants.initial_gap + 0.5 * constants.smoothness * bound**2


def strongly_convex_bound(
    constants: Constants,
    errors: ErrorTerms,
    *,
    total_steps: float,
    balance: float | None = None,
    as_printed: bool = False,
) -> StronglyConvexBound:
    """Theorem 1 (equ: convergence): strongly convex objectives, step size beta / (gamma + t).

    Args:
        constants: Assumptions 1-4 in numbers, with ``strong_convexity``.
        errors: of the selection, the clipping and the noise.
        total_steps: T, global rounds times local steps; infinity gives Corollary 1 (inequality:
            final gap inf), which prints B for B1. The linear part of the exact noise model goes to
            0 in this limit, so ``errors`` must then be without it.
        balance: Gamma; the one that makes the bound least when not given.
        as_printed: 18 Gamma in the clipping term and beta > B1 / (C mu), as the paper prints.

    Example:
        >>> constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=0.4,
        ...                       strong_convexity=0.5)
        >>> errors = error_terms(constants, probabilities=[0.5, 0.5], unbiased=[0.5, 0.5],
        ...                      noise_levels=[0, 1e-6], dimension=1000)
        >>> bound = strongly_convex_bound(constants, errors, total_steps=1000)
        >>> bound.balance, round(bound.vanishing, 4), round(bound.non_vanishing, 4)
        (0.0, 0.0489, 0.0223)
        >>> bound.vacuous
        False
        >>> round(strongly_convex_bound(constants, errors, total_steps=math.inf).total, 6)
        0.022361
    """
    endless = total_steps == math.inf
    steps = math.inf if endless else whole_number("total_steps", total_steps, at_least=1)
    mu, distance, beta = convexity(constants, as_printed=as_printed)
    smooth, clip, gamma = constants.smoothness, constants.clip, constants.step_offset
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
        chosen, least = best_balance(curve)
    else:
        chosen = number("balance", balance, above=0)
        least = curve.value(chosen)
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
        lower_bound=min(base + least, total),
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


def best_balance(curve: BalanceCurve) -> tuple[float, float]:
    """The global minimum of h over Gamma > 0, with its certificate.

    The sign of the slope in ln Gamma is bisected; it changes once, because h is convex there. The
    lower bound is the tangent at the left end of the last bracket, at the bracket's right end.

    Returns:
        Gamma, 0.0 or infinity where the least value is only approached there (the bound then holds
        with the limit, since it holds for every Gamma above 0); and a value that no Gamma is below.

    Example:
        >>> curve = BalanceCurve(start=0, start_growth=0, clipping_growth=0, steady=1,
        ...                      selection_decay=4, noise_growth=1)
        >>> balance, least = best_balance(curve)    # 1 + 4 / Gamma + Gamma is least at 2
        >>> round(balance, 6), round(least**2, 12)
        (2.0, 5.0)
    """
    growing = curve.start_growth + curve.clipping_growth + curve.noise_growth > 0
    if curve.selection_decay == 0 or not growing:
        # No part falls with Gamma, or none grows: the infimum is a limit, in closed form.
        end = 0.0 if curve.selection_decay == 0 else math.inf
        return end, curve.value(end) * (1 - _ROUNDING)
    low, high = -_LARGEST_LOG, _LARGEST_LOG  # an end stands in for a minimum beyond it
    inside = curve.slope(math.exp(low)) <= 0 <= curve.slope(math.exp(high))
    while True:
        middle = 0.5 * (low + high)
        if high - low <= 1e-13 * max(1.0, abs(middle)) or not low < middle < high:
            break
        falls = curve.slope(math.exp(middle)) < 0
        low, high = (middle, high) if falls else (low, middle)
    tangent = curve.value(math.exp(low)) + curve.slope(math.exp(low)) * (high - low)
    floor = math.sqrt(curve.start) + math.sqrt(curve.steady)  # below h for every Gamma
    return math.exp(middle), (max(tangent, floor) if inside else floor) * (1 - _ROUNDING)


def _grown(rate: float, balance: float) -> float:
    """Rate times Gamma, where a rate of 0 stays 0 also in the limit of infinite Gamma."""
    return rate * balance if rate > 0 else 0.0


#: Intervals of relative width below this are not divided.
_NARROWEST = 1e-14
#: The range of T is explored by this factor until the tail is proved worse.
_GROWTH = 16
#: Beyond this T nothing is searched; certificates cover it all the same.
LARGEST_STEPS = 10**60


@dataclass(frozen=True, kw_only=True)
class BestSteps:
    """The best number of steps, and the proof that no other is better.

    Attributes:
        total_steps: the best T; None when the bound keeps falling towards its infimum as T grows,
            which happens when public clients can carry the training alone.
        bound: the bound at that T, or its infimum when there is none.
        lower_bound: no T (and, unless it was given, no selection) has a bound below this.
        probabilities: the selection at that T, or the limiting one, public clients only; empty if
            the selection was given.
        evaluations: how often the bound was computed.
        trivial: B1, which Assumption 3 gives without any theorem.
        limit: the bound's limit as T grows; infinity when the noise makes it grow.
    """

    total_steps: int | None
    bound: float
    lower_bound: float
    probabilities: FloatArray = field(repr=False, default_factory=lambda: np.empty(0))
    evaluations: int
    trivial: float
    limit: float

    @property
    def gap(self) -> float:
        """How much better another choice could be at most."""
        return max(0.0, self.bound - self.lower_bound)

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
    max_steps: int | None = None,
    tolerance: float = 1e-6,
) -> BestSteps:
    """The T >= 1 and the selection that make Theorem 2's bound least (Corollary 2), certified.

    Args:
        constants: Assumptions 1, 3 and 4 in numbers.
        unbiased: p^u, proportional to the sizes.
        noise_levels: V_k, 0 for public clients, infinite for clients that cannot be heard.
        dimension: D, number of trained parameters.
        max_steps: the largest T that is considered.
        tolerance: relative gap at which the search stops.

    Example:
        >>> constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=1)
        >>> best = best_total_steps(constants, unbiased=[0.5, 0.5], noise_levels=[1e-6, 1e-6],
        ...                         dimension=1000)
        >>> 5900 < best.total_steps < 6100, round(best.bound, 3), best.vacuous
        (True, 0.278, False)
    """
    u: FloatArray = np.asarray(unbiased, dtype=np.float64)
    costs: FloatArray = np.asarray(noise_levels, dtype=np.float64) * dimension
    half = 0.5 * constants.working_gradient_bound
    start = _start(constants, constants.working_gradient_bound)
    evaluations, uncertainty = 0, 0.0  # the solver's largest gap: nothing is certified more finely
    best: tuple[float, int, FloatArray] = (math.inf, 0, np.empty(0))

    def at(steps: int) -> _Point:
        nonlocal evaluations, uncertainty, best
        root = math.sqrt(steps)
        answer = solve_selection(
            u, 2.0 * constants.smoothness * root * costs, clipping_gap=constants.fixed_gap
        )
        vanishing = math.sqrt(start / root)
        value, lower_part = half * answer.objective + vanishing, half * answer.lower_bound
        lower = min(value, lower_part + vanishing)
        evaluations, uncertainty = evaluations + 1, max(uncertainty, value - lower)
        if value < best[0]:
            best = value, steps, answer.probabilities
        return steps, root, lower_part, lower

    limit, limiting = _public_limit(constants, u, costs)
    target = limit if max_steps is None else math.inf  # the infimum counts only for unbounded T
    last = max_steps if max_steps is not None else LARGEST_STEPS
    heap: list[tuple[float, int, _Point, _Point]] = []
    left = at(1)

    def good_enough() -> float:
        """What must lie below all that is left for the search to end."""
        return min(best[0], target) * (1 - tolerance) - 2 * uncertainty

    closed = left[-1]  # least lower bound among the points that need no more search
    while left[0] < last:
        if left[2] >= good_enough():
            break  # v grows with T, so every larger T is at least this bad
        right = at(min(left[0] * _GROWTH, last))
        heapq.heappush(heap, (_chord(start, left, right)[0], left[0], left, right))
        left = right
    # The tail beyond the last point: nothing when it is max_steps, else at least v there.
    tail = math.inf if left[0] == max_steps else left[2]
    while heap:
        if heap[0][0] >= good_enough():
            break
        _, _, low, high = heapq.heappop(heap)
        closed = min(closed, low[-1], high[-1])
        if high[0] - low[0] <= 1:
            continue  # no whole number between them
        middle = at(_split(low, high, _chord(start, low, high)[1]))
        for a, b in ((low, middle), (middle, high)):
            heapq.heappush(heap, (_chord(start, a, b)[0], a[0], a, b))
    lowest = min(closed, tail, heap[0][0] if heap else math.inf)
    bound, steps, probabilities = best
    at_infinity = target <= bound
    return BestSteps(
        total_steps=None if at_infinity else steps,
        bound=min(target, bound),
        lower_bound=min(lowest, target, bound),
        probabilities=limiting if at_infinity else probabilities,
        evaluations=evaluations,
        trivial=float(constants.gradient_bound),
        limit=limit,
    )


#: The joint bound at one T: T, sqrt(T), (B1/2) times a lower bound on the least value of Problem 1,
#: and a proved lower bound on the bound there.
_Point = tuple[int, float, float, float]


def _chord(start: float, left: _Point, right: _Point) -> tuple[float, float]:
    """Lower bound on the bound between two points, and the x where the chord's sum is least."""
    (_, first, below, _), (_, where, above, _) = left, right
    if where - first <= _NARROWEST * where:  # no width left for a chord; v grows with x
        return below + math.sqrt(start / where), where
    slope = (above - below) / (where - first)
    if slope > 0:
        where = min(where, max(first, (0.5 * math.sqrt(start) / slope) ** (2 / 3)))
    return below + slope * (where - first) + math.sqrt(start / where), where


def _public_limit(
    constants: Constants, unbiased: FloatArray, costs: FloatArray
) -> tuple[float, FloatArray]:
    """The joint bound as T grows: train on public clients only, or infinity without any."""
    public = costs == 0
    share = float(unbiased[public].sum())
    if not public.any():
        return math.inf, np.empty(0)
    gap = constants.fixed_gap + 2.0 * max(0.0, 1.0 - share)
    alone = np.where(public, unbiased, 0.0)
    alone = alone / share if share > 0 else public / public.sum()
    return constants.working_gradient_bound * gap, alone


def _split(low: _Point, high: _Point, where: float) -> int:
    """A whole number strictly between two points: the chord's minimum, kept off the ends."""
    ratio = high[1] / low[1]
    kept = float(min(low[1] * ratio**0.9, max(low[1] * ratio**0.1, where)))
    return min(high[0] - 1, max(low[0] + 1, round(kept * kept)))

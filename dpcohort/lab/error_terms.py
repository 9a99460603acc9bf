# SPDX-License-Identifier: Apache-2.0
"""The three errors of the convergence analysis: G^select,clip, G^DP and G^b,clip.

Theorems 1 and 2 and their corollaries see a selection only through these, and the problem only
through its :class:`Constants`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array, number, whole_number
from dpcohort.errors import InputError

#: Probabilities that a float64 computation produced sum to 1 within this.
_SUM_TOLERANCE = 1e-9


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


def checked_distribution(
    field: str, values: ArrayLike, *, clients: int | None = None
) -> FloatArray:
    """The values as probabilities over clients, or an error that names what is wrong.

    Example:
        >>> checked_distribution("unbiased", [0.25, 0.75])
        array([0.25, 0.75])
    """
    array = float_array(field, values, at_least=0, at_most=1)
    if array.ndim != 1 or array.size == 0:
        raise InputError(field, given=array.shape, allowed="a list with one entry per client")
    if clients is not None and array.size != clients:
        raise InputError(
            field, given=f"{array.size} entries", allowed=f"{clients} entries, one per client"
        )
    total = math.fsum(array)
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise InputError(
            field,
            given=f"entries with sum {total:.12g}",
            allowed="probabilities that sum to 1",
            next_step="Divide the entries by their sum.",
        )
    return array


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
    p = checked_distribution("probabilities", probabilities)
    scale = whole_number("dimension", dimension, at_least=1)
    quadratic = _drawn_levels("noise_levels", noise_levels, p)
    given = np.zeros_like(p) if linear_levels is None else linear_levels
    linear = _drawn_levels("linear_levels", given, p)
    return scale * float(np.sum(p * (p * quadratic + linear)))


def checked_levels(field: str, values: ArrayLike, clients: int) -> FloatArray:
    """The values as noise levels of the clients, or an error that names what is wrong."""
    levels = float_array(field, values, at_least=0, allow_infinite=True)
    if levels.shape != (clients,):
        raise InputError(
            field, given=f"{levels.size} entries", allowed=f"{clients} entries, one per client"
        )
    return levels


def _drawn_levels(field: str, values: ArrayLike, p: FloatArray) -> FloatArray:
    """Noise levels with those of clients that are never drawn set to 0 (inf times 0 is 0 here)."""
    levels = checked_levels(field, values, p.size)
    drowned = np.flatnonzero(np.isinf(levels) & (p > 0))
    if drowned.size:
        raise InputError(
            f"{field}[{drowned[0]}]",
            given=math.inf,
            allowed=f"finite where the probability is above 0 (here {p[drowned[0]]:.3g})",
            next_step="Select clients of infinite noise with probability 0.",
        )
    return np.where(p > 0, levels, 0.0)


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
    u = checked_distribution("unbiased", unbiased)
    p = checked_distribution("probabilities", probabilities, clients=u.size)
    return ErrorTerms(
        selection_gap=float(np.abs(p - u).sum()),
        clipping_gap=float(constants.clipping_gap),
        biased_clipping_gap=float(constants.biased_clipping_gap),
        drift=constants.dissimilarity / constants.clip,
        privacy_error=privacy_error(
            p, noise_levels, dimension=dimension, linear_levels=linear_levels
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
        for field in ("smoothness", "gradient_bound", "clip"):
            number(field, getattr(self, field), above=0)
        for field in ("initial_gap", "dissimilarity", "clipping_gap", "biased_clipping_gap"):
            number(field, getattr(self, field), at_least=0)
        for field in ("strong_convexity", "step_scale"):
            if getattr(self, field) is not None:
                number(field, getattr(self, field), above=0)
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

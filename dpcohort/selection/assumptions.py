# SPDX-License-Identifier: Apache-2.0
"""Assumptions 1-4 of the convergence analysis in numbers, and what they imply of each other."""

from __future__ import annotations

from dataclasses import dataclass

from dpcohort._validate import number
from dpcohort.errors import InputError

__all__ = ["Constants", "convexity"]

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

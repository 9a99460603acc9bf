# SPDX-License-Identifier: Apache-2.0
"""Gradient-bound selection: in proportion to size times a public bound on the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import float_array
from dpcohort.errors import InputError
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["GradientBound"]


@dataclass(frozen=True, kw_only=True)
class GradientBound(PlannedRule):
    """Probability proportional to ``p^u_k G_k``, G_k a bound on the client's gradient norm.

    The sampling of Luo et al. (adaptive client sampling, INFOCOM 2022; arXiv 2404.13804) where all
    clients are equally fast; of that paper the abstract was read, and the formula follows from its
    weights: with K draws and importance weights ``p^u_k / (K p_k)``, the variance of the result is
    at most ``sum (p^u_k G_k)^2 / p_k / K``, least at ``p_k`` proportional to ``p^u_k G_k`` by
    Cauchy-Schwarz. It is meant for importance-compensated aggregation; with the plain mean it is
    biased.

    They learn G_k from reported norms, which tells of the data. Here it must be public. Every
    gradient is clipped to the same C, so without knowing better G_k is the same for all, and this
    is unbiased selection.

    It takes a value for each client, so it is made in Python; a configuration file has no place.

    Attributes:
        bounds: G_k of each client; None for equal bounds.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]), epsilon=np.array([1.0, 1.0]),
        ...     public=np.zeros(2, dtype=bool), noise_costs=np.array([1.0, 1.0]),
        ...     linear_costs=np.zeros(2), total_steps=100, smoothness=1.0,
        ... )
        >>> GradientBound(bounds=(3.0, 1.0)).select(problem).probabilities
        array([0.75, 0.25])
    """

    name: ClassVar[str] = "gradient-bound"

    bounds: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.bounds is not None:
            float_array("bounds", self.bounds, above=0)

    def select(self, problem: SelectionProblem) -> Selection:
        """Probabilities proportional to size times bound."""
        if self.bounds is None:
            return evaluated(self.name, problem.unbiased, problem, settings={})
        bounds = np.asarray(self.bounds, dtype=np.float64)
        if bounds.shape != (problem.size,):
            raise InputError(
                "shape of bounds", given=bounds.shape, allowed=f"({problem.size},), one a client"
            )
        # Dividing first keeps products of huge bounds in range.
        p = problem.unbiased * (bounds / bounds.max())
        settings: dict[str, object] = {"bounds": bounds.tolist()}
        return evaluated(self.name, p / p.sum(), problem, settings=settings)

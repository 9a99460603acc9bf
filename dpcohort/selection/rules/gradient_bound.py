# SPDX-License-Identifier: Apache-2.0
"""Gradient-bound selection: by size times a public bound on the gradient, less if slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, float_array
from dpcohort.errors import InputError
from dpcohort.selection.problem import PlannedRule, Selection, SelectionProblem, evaluated

__all__ = ["GradientBound"]


@dataclass(frozen=True, kw_only=True)
class GradientBound(PlannedRule):
    """Probability proportional to ``p^u_k G_k / sqrt(t_k)``: gradient bound G_k, round time t_k.

    The sampling of Luo et al. (adaptive client sampling, INFOCOM 2022; arXiv 2404.13804). Of that
    paper the abstract was read; the formulas follow from its weights. With K draws and importance
    weights ``p^u_k / (K p_k)``, the variance of the result is at most
    ``sum (p^u_k G_k)^2 / p_k / K``, least at ``p_k`` proportional to ``p^u_k G_k`` by
    Cauchy-Schwarz. If rounds take as long as their draws together, the time to a given variance is
    proportional to ``(sum p_k t_k) (sum (p^u_k G_k)^2 / p_k)``, least, by Cauchy-Schwarz again, at
    ``p^u_k G_k / sqrt(t_k)``. It is meant for importance-compensated aggregation; with the plain
    mean it is biased.

    They learn G_k from reported norms, which tells of the data. Here it must be public. Every
    gradient is clipped to the same C, so without knowing better G_k is the same for all, and with
    equal times this is unbiased selection. Times must be public too; a time that grows with the
    records that happen to be drawn is not.

    Attributes:
        bounds: G_k of each client; None for equal bounds.
        round_times: t_k of each client, in any unit; None for equal times.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]), epsilon=np.array([1.0, 1.0]),
        ...     public=np.zeros(2, dtype=bool), noise_costs=np.array([1.0, 1.0]),
        ...     linear_costs=np.zeros(2), total_steps=100, smoothness=1.0,
        ... )
        >>> GradientBound(bounds=(3.0, 1.0)).select(problem).probabilities
        array([0.75, 0.25])
        >>> GradientBound(round_times=(9.0, 1.0)).select(problem).probabilities
        array([0.25, 0.75])
    """

    name: ClassVar[str] = "gradient-bound"
    needs: ClassVar[str] = "sizes, public bounds G_k, public round times"
    leaks: ClassVar[str] = "sizes, bounds, times"
    reference: ClassVar[str] = "Luo et al., arXiv 2404.13804 (abstract read; formula derived)"

    bounds: Sequence[float] | None = None
    round_times: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for field in ("bounds", "round_times"):
            if getattr(self, field) is not None:
                float_array(field, getattr(self, field), above=0)

    def select(self, problem: SelectionProblem) -> Selection:
        """Probabilities proportional to size times bound, over the root of the time."""
        p = problem.unbiased.copy()
        settings: dict[str, object] = {}
        if self.bounds is not None:
            bounds = _column("bounds", self.bounds, problem.size)
            # Dividing first keeps products of huge bounds in range.
            p = p * (bounds / bounds.max())
            settings["bounds"] = bounds.tolist()
        if self.round_times is not None:
            times = _column("round_times", self.round_times, problem.size)
            p = p * np.sqrt(times.min() / times)
            settings["round_times"] = times.tolist()
        return evaluated(self.name, p / p.sum(), problem, settings=settings)


def _column(field: str, values: Sequence[float], size: int) -> FloatArray:
    column = np.asarray(values, dtype=np.float64)
    if column.shape != (size,):
        raise InputError(
            f"shape of {field}", given=column.shape, allowed=f"({size},), one a client"
        )
    return column

# SPDX-License-Identifier: Apache-2.0
"""Geometric median: the point of least total distance to the updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpcohort._validate import number, whole_number
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GeometricMedian"]


@dataclass(frozen=True, kw_only=True)
class GeometricMedian:
    """An approximate minimiser of ``sum_i ||v - x_i||``, by smoothed Weiszfeld steps.

    From the plain mean, v moves to the mean weighted by ``1 / max(nu, ||v - x_i||)``. The use in
    federated learning is that of Pillutla et al. (Robust Aggregation for Federated Learning, IEEE
    TSP 2022), iteration from general knowledge. Fewer than half of the draws, wherever they lie,
    cannot carry the exact median away; a few steps are an approximation of it. A draw of much
    noise is far from the others and weighs little, so noise is weighed without trusting what was
    declared. Post-processing: no privacy is spent.

    Attributes:
        steps: largest number of Weiszfeld steps.
        smoothing: nu, as a fraction of the mean distance to the starting point.
        tolerance: steps end when v moves by less than this fraction of that distance.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(3)
        >>> cohort = Cohort(round=0, clients=np.arange(3), draws=np.zeros(3, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(3, dtype=np.int64),
        ...                 noise_stds=one)
        >>> updates = torch.tensor([[1.0], [2.0], [1000.0]])
        >>> GeometricMedian(steps=200).combine(updates, cohort).round(decimals=2)
        tensor([2.])
    """

    name: ClassVar[str] = "geometric-median"
    needs: ClassVar[str] = "fewer than half of the draws lie"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "Pillutla et al., IEEE TSP 2022 (general knowledge)"

    steps: int = 32
    smoothing: float = 1e-6
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, at_least=1)
        number("smoothing", self.smoothing, above=0, below=1)
        number("tolerance", self.tolerance, at_least=0, below=1)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The geometric median of the rows."""
        import torch

        checked_updates(updates, cohort)
        point = updates.mean(0)
        distances = torch.linalg.vector_norm(updates - point, dim=1)
        scale = float(distances.mean())
        if scale == 0.0:
            return point
        for _ in range(self.steps):
            closeness = 1.0 / torch.clamp(distances / scale, min=self.smoothing)
            moved = (closeness / closeness.sum()) @ updates
            change = float(torch.linalg.vector_norm(moved - point))
            point = moved
            if change <= self.tolerance * scale:
                break
            distances = torch.linalg.vector_norm(updates - point, dim=1)
        return point

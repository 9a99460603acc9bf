# SPDX-License-Identifier: Apache-2.0
"""Estimated-noise mean (Robust-HDP): weights from the noise that updates show, not declare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpcohort._validate import FloatArray, number, whole_number
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EstimatedNoise", "low_rank_and_sparse"]

#: Growth of the penalty in each step of the augmented Lagrangian, its start, and its largest value.
_GROWTH, _START, _LARGEST = 1.5, 1.25, 1e7


@dataclass(frozen=True, kw_only=True)
class EstimatedNoise:
    """``w_i`` proportional to ``1 / ||S_i||^2``, where ``X = L + S`` by robust PCA of the updates.

    Robust-HDP of Malekmohammadi et al. (ICML 2024): L, of low rank, is what the updates share, and
    S_i what draw i adds to it, mostly its noise. Nothing declared is used, so a client gains
    nothing by declaring less noise than it sends. Where this differs: they estimate once, in the
    first round with all clients present; here cohorts change, so each round is estimated anew. The
    estimates keep the order of the noise but shrink large noise against small, and what only one
    client knows counts as its noise too. Computed from noisy updates: post-processing, no privacy
    is spent.

    Attributes:
        coordinates: how many coordinates, evenly spaced, the estimate reads; at most all.
        floor: smallest std that counts, as a fraction of the cohort's largest.
        steps: largest number of steps of the robust PCA.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> stds = torch.tensor([2.0, 0.1, 4.0, 0.5])
        >>> updates = 1.0 + stds[:, None] * torch.randn(4, 5000, generator=generator)
        >>> EstimatedNoise().noise(updates).argsort()
        array([1, 3, 0, 2])
    """

    name: ClassVar[str] = "estimated-noise"
    needs: ClassVar[str] = "nothing declared; clients that share most of what they know"
    leaks: ClassVar[str] = "which updates look noisy"
    reference: ClassVar[str] = "Robust-HDP: Malekmohammadi et al., ICML 2024, each round anew"

    coordinates: int = 20_000
    floor: float = 1e-3
    steps: int = 200

    def __post_init__(self) -> None:
        whole_number("coordinates", self.coordinates, at_least=1)
        number("floor", self.floor, above=0, at_most=1)
        whole_number("steps", self.steps, at_least=1)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean weighted by the inverse of the estimated noise variance."""
        noise = self.noise(checked_updates(updates, cohort))
        largest = float(noise.max())
        if largest == 0.0:
            return updates.mean(0)
        inverse = np.maximum(noise / largest, self.floor) ** -2.0
        return weighted_sum(updates, inverse / inverse.sum())

    def noise(self, updates: Tensor) -> FloatArray:
        """The estimated std of each update's noise, in units of the updates."""
        import torch

        stride = math.ceil(updates.shape[1] / self.coordinates)
        read = updates[:, ::stride].to(torch.float64)
        peak = float(read.abs().max())
        if peak == 0.0:
            return np.zeros(updates.shape[0])
        # Scaled, so that no square or inverse of huge or tiny updates leaves the range.
        _, sparse = low_rank_and_sparse(read / peak, steps=self.steps)
        stds = sparse.square().mean(1).sqrt().cpu().numpy()
        return np.asarray(peak * stds, dtype=np.float64)


def low_rank_and_sparse(
    matrix: Tensor, *, steps: int = 200, tolerance: float = 5e-8
) -> tuple[Tensor, Tensor]:
    """Robust PCA: L and S with ``matrix = L + S``, of least ``||L||_* + lambda ||S||_1``.

    Principal component pursuit with ``lambda = 1 / sqrt(largest side)`` (Candes et al., Robust
    Principal Component Analysis?, 2011) by the inexact augmented Lagrangian method (Lin, Chen and
    Ma, 2010); both from general knowledge, checked in the tests on matrices whose parts are known.

    Args:
        matrix: any finite matrix.
        steps: largest number of steps.
        tolerance: relative error of ``L + S`` at which to stop.

    Example:
        >>> import torch
        >>> matrix = torch.ones(20, 30, dtype=torch.float64)
        >>> matrix[3, 4] = 9.0
        >>> low, sparse = low_rank_and_sparse(matrix)
        >>> torch.nonzero(sparse.abs() > 0.1).tolist()
        [[3, 4]]
    """
    import torch

    sparse = torch.zeros_like(matrix)
    size = float(torch.linalg.vector_norm(matrix))
    if size == 0.0:
        return matrix.clone(), sparse
    weight = 1.0 / math.sqrt(max(matrix.shape))
    largest = float(torch.linalg.matrix_norm(matrix, 2))
    dual = matrix / max(largest, float(matrix.abs().max()) / weight)
    penalty = _START / largest
    low = matrix
    for _ in range(steps):
        shifted = matrix - sparse + dual / penalty
        left, values, right = torch.linalg.svd(shifted, full_matrices=False)
        low = (left * torch.clamp(values - 1.0 / penalty, min=0.0)) @ right
        sparse = torch.nn.functional.softshrink(matrix - low + dual / penalty, weight / penalty)
        rest = matrix - low - sparse
        if float(torch.linalg.vector_norm(rest)) <= tolerance * size:
            break
        dual = dual + penalty * rest
        penalty = min(penalty * _GROWTH, _LARGEST * _START / largest)
    return low, sparse

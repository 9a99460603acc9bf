# SPDX-License-Identifier: Apache-2.0
"""Inverse-variance mean: the weights of least noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpcohort._validate import FloatArray, number
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["InverseVariance"]


@dataclass(frozen=True, kw_only=True)
class InverseVariance:
    """``w_i`` proportional to ``1 / (v + s_i^2)``, with s_i the public noise std of the draw.

    Among all weights that sum to 1 these give the least variance (Gauss-Markov), if draws differ
    from a common truth by independent errors of variance ``v + s_i^2``. With data that differ
    between clients the result leans towards those with large budgets. It trusts the declared
    noise. Post-processing: no privacy is spent.

    Draws without noise would take everything at v = 0. Their variance counts as v, or as the square
    of ``floor`` times the smallest positive std of the cohort where that is more: with the
    defaults, each weighs as much as 100 of the least noisy private draws. A cohort without any
    noise is averaged.

    Attributes:
        data_variance: v, how much one coordinate of the mean gradient of a local step differs
            between clients, in the units of ``Cohort.noise_stds`` squared. It must be known
            beforehand or come from public data.
        floor: least std of a draw without noise, as a fraction of the smallest positive std.

    Example:
        >>> import torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]),
        ...                 noise_stds=np.array([1.0, 3.0]))
        >>> InverseVariance().combine(torch.tensor([[0.0], [10.0]]), cohort)
        tensor([1.])
    """

    name: ClassVar[str] = "inverse-variance"
    needs: ClassVar[str] = "the noise of the draws, declared truthfully"
    leaks: ClassVar[str] = "whose noise is small"
    reference: ClassVar[str] = "Gauss-Markov"

    data_variance: float = 0.0
    floor: float = 0.1

    def __post_init__(self) -> None:
        number("data_variance", self.data_variance, at_least=0)
        number("floor", self.floor, above=0, at_most=1)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean of least noise."""
        checked_updates(updates, cohort)
        return weighted_sum(updates, self.weights(cohort))

    def weights(self, cohort: Cohort) -> FloatArray:
        """The weight of each draw; they sum to 1."""
        stds = cohort.noise_stds
        noisy = stds > 0.0
        if not noisy.any():
            return np.full(len(cohort), 1.0 / len(cohort))
        smallest, spread = float(stds[noisy].min()), math.sqrt(self.data_variance)
        unit = max(smallest, spread)
        with np.errstate(over="ignore"):  # a draw of infinitely more noise than another weighs 0
            variance = (stds / unit) ** 2 + (spread / unit) ** 2
        variance[~noisy] = max(self.floor * smallest / unit, spread / unit) ** 2
        inverse: FloatArray = 1.0 / variance
        return np.asarray(inverse / inverse.sum(), dtype=np.float64)

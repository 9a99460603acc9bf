# SPDX-License-Identifier: Apache-2.0
"""Minimum-noise subset: the plain mean of those draws whose mean has the least noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpcohort._validate import BoolArray
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MinimumNoise"]


@dataclass(frozen=True, kw_only=True)
class MinimumNoise:
    """The mean over the m least noisy draws, with m the minimiser of ``sum_{i<=m} s_i^2 / m^2``.

    The threshold idea (keep the large budgets, drop the rest; Cyffers and Ziani, arXiv 2605.13503,
    of which the abstract was read) applied to a cohort, with the threshold chosen by the noise of
    the result. All draws of equal noise are kept or dropped together. Draws without noise, where
    there are any, are all that is kept. What is dropped was still spent: its client's ledger is
    charged. It trusts the declared noise. Post-processing: no privacy is spent beyond that.

    Example:
        >>> import torch
        >>> one = np.ones(3)
        >>> cohort = Cohort(round=0, clients=np.arange(3), draws=np.zeros(3, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(3, dtype=np.int64),
        ...                 noise_stds=np.array([1.0, 9.0, 1.5]))
        >>> MinimumNoise().combine(torch.tensor([[1.0], [100.0], [3.0]]), cohort)
        tensor([2.])
    """

    name: ClassVar[str] = "minimum-noise"
    needs: ClassVar[str] = "the noise of the draws, declared truthfully"
    leaks: ClassVar[str] = "who is dropped"
    reference: ClassVar[str] = "ours, after Cyffers and Ziani, arXiv 2605.13503 (abstract read)"

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean over the draws that are kept."""
        checked_updates(updates, cohort)
        kept = self.kept(cohort)
        return weighted_sum(updates, kept / kept.sum())

    def kept(self, cohort: Cohort) -> BoolArray:
        """Which draws are kept.

        If one draw of some noise lowers the noise of the mean, the next one of the same noise does
        so too; hence the minimum never lies between draws of equal noise.
        """
        stds = cohort.noise_stds
        largest = float(stds.max())
        ordered = np.sort(stds / largest if largest > 0.0 else stds)
        counts = np.arange(1, stds.size + 1)
        noise = np.cumsum(ordered**2) / counts**2
        last = int(np.flatnonzero(noise == noise.min())[-1])
        return np.asarray(stds <= np.sort(stds)[last], dtype=np.bool_)

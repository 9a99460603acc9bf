# SPDX-License-Identifier: Apache-2.0
"""Coordinate-wise trimmed mean: in each coordinate, without its extremes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpcohort._validate import number
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TrimmedMean"]


@dataclass(frozen=True, kw_only=True)
class TrimmedMean:
    """In each coordinate the mean without the ``floor(trim K)`` largest and as many smallest.

    The estimator of Yin et al. (Byzantine-Robust Distributed Learning, ICML 2018), definition from
    general knowledge. It holds as long as no more than that many draws of a round lie; a trim
    below 1/K drops nothing and is the plain mean. It costs: biased where clients' data are skewed,
    and trimming throws the noisiest draws out of most coordinates, so it acts as a soft selection
    by noise as well. Needs nothing and trusts nothing declared. Post-processing: no privacy is
    spent.

    Attributes:
        trim: share of the draws dropped at each end, below 1/2.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(4)
        >>> cohort = Cohort(round=0, clients=np.arange(4), draws=np.zeros(4, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(4, dtype=np.int64),
        ...                 noise_stds=one)
        >>> updates = torch.tensor([[1.0], [2.0], [4.0], [1000.0]])
        >>> TrimmedMean(trim=0.25).combine(updates, cohort)
        tensor([3.])
    """

    name: ClassVar[str] = "trimmed-mean"
    needs: ClassVar[str] = "no more liars a round than are trimmed"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "Yin et al., ICML 2018 (general knowledge)"

    trim: float = 0.1

    def __post_init__(self) -> None:
        number("trim", self.trim, at_least=0, below=0.5)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The trimmed mean of each coordinate."""
        import torch

        checked_updates(updates, cohort)
        # 0.29 * 100 is a little less than 29 in floating point; a draw is always left.
        dropped = math.floor(self.trim * len(cohort) * (1.0 + 1e-12))
        dropped = min(dropped, (len(cohort) - 1) // 2)
        if dropped == 0:
            return updates.mean(0)
        ordered = torch.sort(updates, dim=0).values
        return ordered[dropped : len(cohort) - dropped].mean(0)

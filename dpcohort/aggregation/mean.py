# SPDX-License-Identifier: Apache-2.0
"""The paper's rule: the plain mean over draws (Algorithm 1, line 8)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpcohort.aggregation.cohort import Cohort

__all__ = ["Mean"]


@dataclass(frozen=True)
class Mean:
    """Every draw counts the same; a client drawn twice counts twice.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> Mean().combine(torch.tensor([[1.0], [3.0]]), cohort)
        tensor([2.])
    """

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean of the rows."""
        return updates.mean(0)

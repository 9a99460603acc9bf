# SPDX-License-Identifier: Apache-2.0
"""The paper's rule: the plain mean over draws (Algorithm 1, line 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpcohort.aggregation.cohort import Cohort

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Mean", "sum_of_rows"]


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

    name: ClassVar[str] = "mean"
    needs: ClassVar[str] = "nothing"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "the paper (arXiv 2602.22633), Algorithm 1, line 8"

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean of the rows."""
        if updates.device.type != "cpu":
            return updates.mean(0)
        return sum_of_rows(updates).div_(len(updates))


def sum_of_rows(rows: Tensor) -> Tensor:
    """The sum of rows [n, D] in their order, with the same bits on any number of threads.

    Example:
        >>> import torch
        >>> sum_of_rows(torch.tensor([[1.0], [3.0]]))
        tensor([4.])
    """
    if rows.device.type != "cpu":
        return rows.sum(0)
    # Row by row, so that on a CPU all threads can share the work without changing its bits.
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total

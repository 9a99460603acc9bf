# SPDX-License-Identifier: Apache-2.0
"""Size-weighted mean: a draw counts as much as its client has records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates, client_column, of_cohort, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.plan import Plan

__all__ = ["SizeWeighted"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeWeighted:
    """``w_i = n_{k_i} / sum_j n_{k_j}`` over the draws of the round.

    The weights of federated averaging (McMahan et al., AISTATS 2017; general knowledge). They
    belong to uniform selection; with draws already in proportion to size, size counts twice.
    Needs the sizes, which are public here. Post-processing: no privacy is spent.

    Attributes:
        sizes: records of each client of the population.

    Example:
        >>> import torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> SizeWeighted(sizes=[30, 10]).combine(torch.tensor([[1.0], [5.0]]), cohort)
        tensor([2.])
    """

    name: ClassVar[str] = "size-weighted"
    needs: ClassVar[str] = "sizes"
    leaks: ClassVar[str] = "whose data set is large"
    reference: ClassVar[str] = "McMahan et al., AISTATS 2017 (general knowledge)"

    sizes: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", client_column("sizes", self.sizes, above=0))

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean weighted by size."""
        checked_updates(updates, cohort)
        sizes = of_cohort("sizes", self.sizes, cohort)
        return weighted_sum(updates, sizes / sizes.sum())

    def objection(self, plan: Plan) -> str | None:
        """Why it makes no sense with this plan, if it does not."""
        drawn = plan.selection.probabilities > 0.0
        shares = plan.selection.probabilities[drawn] / plan.population.sizes[drawn]
        if np.allclose(shares, shares[0], rtol=1e-9) and np.ptp(plan.population.sizes[drawn]) > 0:
            return "clients are drawn in proportion to size already: size would count twice"
        return None

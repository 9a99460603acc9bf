# SPDX-License-Identifier: Apache-2.0
"""Epsilon-weighted mean (WeiAvg): a draw counts as much as its client's epsilon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpcohort._validate import FloatArray, number
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates, client_column, of_cohort, weighted_sum
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EpsilonWeighted"]


@dataclass(frozen=True, kw_only=True, eq=False)
class EpsilonWeighted:
    """``w_i = epsilon_{k_i} / sum_j epsilon_{k_j}`` over the draws of the round.

    WeiAvg of Liu et al. (Projected Federated Averaging with Heterogeneous Differential Privacy,
    VLDB 2021): larger budgets weigh more. It trusts the declared epsilons, and the model shows
    whose epsilon is large, which is public here. Post-processing: no privacy is spent.

    Attributes:
        epsilon: epsilon of each client; NaN for public ones.
        public_epsilon: the epsilon a public client counts with. None: the largest among the other
            clients (1 if everybody is public, so all are equal).

    Example:
        >>> import torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> EpsilonWeighted(epsilon=[1.0, 3.0]).combine(torch.tensor([[4.0], [0.0]]), cohort)
        tensor([1.])
    """

    name: ClassVar[str] = "epsilon-weighted"
    needs: ClassVar[str] = "budgets, declared truthfully"
    leaks: ClassVar[str] = "whose budget is large"
    reference: ClassVar[str] = "WeiAvg: Liu et al., VLDB 2021"

    epsilon: FloatArray
    public_epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.public_epsilon is not None:
            number("public_epsilon", self.public_epsilon, above=0)
        try:
            given = np.array(self.epsilon, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("epsilon", given=self.epsilon, allowed="numbers only") from None
        # A public client has no epsilon; 1 stands in so that the others keep their position.
        client_column("epsilon", np.where(np.isnan(given), 1.0, given), above=0)
        given.setflags(write=False)
        object.__setattr__(self, "epsilon", given)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean weighted by epsilon."""
        checked_updates(updates, cohort)
        declared = of_cohort("epsilon", self.epsilon, cohort)
        weights = np.where(np.isnan(declared), self._of_public(), declared)
        weights = weights / weights.max()  # epsilons near the largest double would overflow
        return weighted_sum(updates, weights / weights.sum())

    def _of_public(self) -> float:
        if self.public_epsilon is not None:
            return self.public_epsilon
        private = self.epsilon[~np.isnan(self.epsilon)]
        return float(private.max()) if private.size else 1.0

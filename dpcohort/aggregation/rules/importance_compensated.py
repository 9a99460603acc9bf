# SPDX-License-Identifier: Apache-2.0
"""Importance compensation: weights that undo the bias of the selection, in expectation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates, client_column, of_cohort, weighted_sum
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.plan import Plan

__all__ = ["ImportanceCompensated"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportanceCompensated:
    """``w_i = p^u_k / (K p^s_k)`` for a draw of client k among K draws.

    If each draw is client k with probability p^s_k, the sum has expectation ``sum_k p^u_k x_k``
    whatever p^s is: the importance weights of Luo et al. (adaptive client sampling, INFOCOM 2022;
    arXiv 2404.13804). Only the abstract of that paper could be read; the identity is elementary,
    and the tests enumerate it. The weights sum to 1 in expectation only, and a client drawn rarely
    enters with a large weight on its noise too.

    Needs both probabilities of each client, fixed and public before training. Post-processing: no
    privacy is spent.

    Attributes:
        probabilities: p^s, by which clients are drawn.
        unbiased: p^u, which the result stands for.

    Raises:
        InputError: a client with p^u > 0 is never drawn: no weight makes up for that.

    Example:
        >>> import torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> rule = ImportanceCompensated(probabilities=[0.8, 0.2], unbiased=[0.4, 0.6])
        >>> rule.combine(torch.tensor([[4.0], [2.0]]), cohort)
        tensor([4.])
    """

    name: ClassVar[str] = "importance-compensated"
    needs: ClassVar[str] = "the probabilities of selection, sizes"
    leaks: ClassVar[str] = "who is drawn rarely"
    reference: ClassVar[str] = "Luo et al., arXiv 2404.13804 (abstract read; identity tested)"

    probabilities: FloatArray
    unbiased: FloatArray

    def __post_init__(self) -> None:
        for field in ("probabilities", "unbiased"):
            column = client_column(field, getattr(self, field), at_least=0)
            if abs(float(column.sum()) - 1.0) > 1e-9:
                raise InputError(
                    f"sum of {field}", given=float(column.sum()), allowed="1, up to rounding"
                )
            object.__setattr__(self, field, column)
        if self.probabilities.size != self.unbiased.size:
            raise InputError(
                "length of unbiased",
                given=self.unbiased.size,
                allowed=f"{self.probabilities.size}, as that of probabilities",
            )
        lost = np.flatnonzero((self.probabilities == 0.0) & (self.unbiased > 0.0))
        if lost.size:
            raise InputError.because(
                f"client {int(lost[0])} ({lost.size} in all) is never drawn but has an unbiased "
                "share, which no weight can make up for; give the selection a floor, or take "
                "another aggregation."
            )

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The sum weighted by p^u / (K p^s)."""
        checked_updates(updates, cohort)
        drawn = of_cohort("probabilities", self.probabilities, cohort)
        if not drawn.all():
            client = int(cohort.clients[drawn == 0.0][0])
            raise InputError.because(
                f"client {client} is drawn in round {cohort.round} but has probability 0; the "
                "probabilities are not those of the schedule."
            )
        weights = self.unbiased[cohort.clients] / (len(cohort) * drawn)
        return weighted_sum(updates, weights)

    def objection(self, plan: Plan) -> str | None:
        """Why it is pointless with this plan, if it is."""
        if np.allclose(plan.selection.probabilities, plan.selection.unbiased, rtol=1e-9, atol=0):
            return "the selection is unbiased: there is nothing to compensate, it is the mean"
        return None

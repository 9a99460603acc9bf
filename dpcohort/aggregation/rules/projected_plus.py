# SPDX-License-Identifier: Apache-2.0
"""Projected averaging with last round's subspace (PFA+): noisy clients send a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.rules.projected import Projected
from dpcohort.aggregation.weights import checked_updates

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ProjectedPlus"]


@dataclass(frozen=True, kw_only=True)
class ProjectedPlus(Projected):
    """The mean, with noisier updates x as ``m + V V^T (x - m)``, V from the round before.

    PFA+ of Liu et al. (Projected Federated Averaging with Heterogeneous Differential Privacy, VLDB
    2021): since V is known before the round, a client outside the leading group need only send the
    ``components`` numbers ``V^T x``, and the server does the rest with this round's m. What is
    computed here is what the server would hold. The first round has no V yet and works like
    ``projected``; so does a round after one whose leading group had no direction. The same
    departures from their text as in :class:`Projected`.

    V is remembered as part of the training's state. Post-processing: no privacy is spent.

    Attributes:
        share: share of the draws that forms the leading group.
        components: dimension of the subspace, and how many numbers a noisy client sends.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(3)
        >>> cohort = Cohort(round=1, clients=np.arange(3), draws=np.zeros(3, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(3, dtype=np.int64),
        ...                 noise_stds=np.array([1.0, 1.0, 9.0]))
        >>> updates = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 60.0]])
        >>> last = torch.tensor([[0.0, 1.0]])
        >>> ProjectedPlus().combine_remembering(updates, cohort, last)[0]
        tensor([ 2., 20.])
    """

    name: ClassVar[str] = "projected-plus"
    reference: ClassVar[str] = "PFA+: Liu et al., VLDB 2021, the whole update at once"

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """One round on its own: like ``projected``."""
        return self.combine_remembering(updates, cohort, None)[0]

    def combine_remembering(
        self, updates: Tensor, cohort: Cohort, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The mean with last round's subspace, and this round's subspace for the next."""
        import torch

        leaders, others = self._groups(checked_updates(updates, cohort), cohort)
        centre = leaders.mean(0)
        found = self._directions(leaders, centre)
        basis = found if memory is None else memory
        combined = self._moved(centre, others, basis, draws=len(cohort))
        if found.shape[0] == 0:
            return combined, None
        # In the layout that a checkpoint gives back, so that a resumed training rounds alike.
        return combined, found.clone(memory_format=torch.contiguous_format)

# SPDX-License-Identifier: Apache-2.0
"""Projected federated averaging (PFA, PFA+): noisy updates on the subspace of less noisy ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpcohort._validate import BoolArray, number, whole_number
from dpcohort.aggregation._rule import Cohort, checked_updates

if TYPE_CHECKING:
    from torch import Tensor

#: Directions whose singular value is below this many roundings of the updates are rounding.
_ROUNDINGS = 10.0


@dataclass(frozen=True, kw_only=True)
class Projected:
    """The mean, after the noisier updates x are replaced by ``m + V V^T (x - m)``.

    m is the mean of the least noisy updates and V their leading principal directions (Liu et al.,
    Projected Federated Averaging with Heterogeneous Differential Privacy, VLDB 2021). Where this
    differs from their text and code: the leading group is chosen by the noise of the draws, not by
    epsilon alone; it has at least ``components + 1`` draws, without which there is no direction;
    and the whole update is projected at once, not layer by layer, since a rule sees one vector.
    Draws of equal noise fall on the same side, so equal noise gives the plain mean.

    Everything is computed from updates that carry their noise: post-processing, no privacy is
    spent. It assumes that the leading group speaks for all: what the others know outside V is
    dropped with their noise. It trusts the declared noise.

    Attributes:
        share: share of the draws that forms the leading group.
        components: dimension of the subspace.

    Example:
        >>> import torch
        >>> one = np.ones(3)
        >>> cohort = Cohort(round=0, clients=np.arange(3), draws=np.zeros(3, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(3, dtype=np.int64),
        ...                 noise_stds=np.array([1.0, 1.0, 9.0]))
        >>> updates = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 60.0]])
        >>> Projected().combine(updates, cohort).round(decimals=4) + 0.0
        tensor([3., 0.])
    """

    name: ClassVar[str] = "projected"
    needs: ClassVar[str] = "the noise of the draws, declared truthfully"
    leaks: ClassVar[str] = "whose noise is least"
    reference: ClassVar[str] = "PFA: Liu et al., VLDB 2021, the whole update at once"

    share: float = 0.1
    components: int = 1

    def __post_init__(self) -> None:
        number("share", self.share, above=0, at_most=1)
        whole_number("components", self.components, at_least=1)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean of the leading group's updates and the projections of the others."""
        leaders, others = self._groups(checked_updates(updates, cohort), cohort)
        centre = leaders.mean(0)
        if others.shape[0] == 0:
            return centre  # without looking for a subspace
        return self._moved(centre, others, self._directions(leaders, centre), draws=len(cohort))

    def leading(self, cohort: Cohort) -> BoolArray:
        """Which draws form the leading group."""
        wanted = max(math.ceil(self.share * len(cohort)), self.components + 1)
        worst = np.sort(cohort.noise_stds)[min(wanted, len(cohort)) - 1]
        return np.asarray(cohort.noise_stds <= worst, dtype=np.bool_)

    def _groups(self, updates: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """The updates of the leading group, and the others."""
        import torch

        leading = torch.as_tensor(self.leading(cohort), device=updates.device)
        return updates[leading], updates[~leading]

    @staticmethod
    def _moved(centre: Tensor, others: Tensor, basis: Tensor, *, draws: int) -> Tensor:
        """The mean of the leaders, of mean ``centre``, and the projections of the others."""
        if others.shape[0] == 0:
            return centre
        # The projection is linear, so the mean of the projections is that of the mean.
        moved: Tensor = basis.T @ (basis @ (others.mean(0) - centre))
        return centre + moved * (others.shape[0] / draws)

    def _directions(self, leaders: Tensor, centre: Tensor) -> Tensor:
        """Orthonormal rows: the leading right singular vectors, without those of rounding."""
        import torch

        _, values, rows = torch.linalg.svd(leaders - centre, full_matrices=False)
        least = _ROUNDINGS * torch.finfo(leaders.dtype).eps * torch.linalg.vector_norm(leaders)
        directions: Tensor = rows[: min(self.components, int((values > least).sum()))]
        return directions


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

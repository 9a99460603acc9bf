# SPDX-License-Identifier: Apache-2.0
"""Clipped mean: no draw moves the model further than a public bound allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpcohort._validate import number
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.weights import checked_updates

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ClippedMean"]


@dataclass(frozen=True, kw_only=True)
class ClippedMean:
    """The mean of ``x_i min(1, bound / ||x_i||)``.

    A guard against a client that sends more than it declared: one draw moves the result by at most
    ``2 bound / K``, whatever it holds. It is not the clipping that privacy rests on, which happens
    to each record before the noise. Honest updates carry noise of norm about ``sqrt(D)`` times its
    std, so a bound without room for it shrinks the noisy clients most. The form is that of
    norm-clipped aggregation (Sun et al., Can You Really Backdoor Federated Learning?, 2019;
    general knowledge, not read for this). Post-processing: no privacy is spent.

    Attributes:
        bound: largest norm of an update, public and fixed beforehand.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> ClippedMean(bound=3.0).combine(torch.tensor([[1.0], [1000.0]]), cohort)
        tensor([2.])
    """

    name: ClassVar[str] = "clipped-mean"
    needs: ClassVar[str] = "a public bound on the norm of an update"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "Sun et al. 2019 (general knowledge)"

    bound: float

    def __post_init__(self) -> None:
        number("bound", self.bound, above=0)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean of the clipped updates."""
        import torch

        # The largest entry goes first, so that no square of a huge one overflows.
        largest = checked_updates(updates, cohort).abs().amax(1, keepdim=True)
        scale = torch.where(largest > 0, largest, torch.ones_like(largest))
        unit = updates / scale
        norms = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
        room = self.bound / scale
        return (updates * torch.clamp(room / torch.clamp(norms, min=1.0), max=1.0)).mean(0)

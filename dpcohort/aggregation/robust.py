# SPDX-License-Identifier: Apache-2.0
"""Rules that limit what one draw can do: clipped mean, trimmed mean, geometric median."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpcohort._validate import number, whole_number
from dpcohort.aggregation.rule import Cohort, checked_updates

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ClippedMean", "GeometricMedian", "TrimmedMean"]


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


@dataclass(frozen=True, kw_only=True)
class GeometricMedian:
    """An approximate minimiser of ``sum_i ||v - x_i||``, by smoothed Weiszfeld steps.

    From the plain mean, v moves to the mean weighted by ``1 / max(nu, ||v - x_i||)``. The use in
    federated learning is that of Pillutla et al. (Robust Aggregation for Federated Learning, IEEE
    TSP 2022), iteration from general knowledge. Fewer than half of the draws, wherever they lie,
    cannot carry the exact median away; a few steps are an approximation of it. A draw of much
    noise is far from the others and weighs little, so noise is weighed without trusting what was
    declared. Post-processing: no privacy is spent.

    Attributes:
        steps: largest number of Weiszfeld steps.
        smoothing: nu, as a fraction of the mean distance to the starting point.
        tolerance: steps end when v moves by less than this fraction of that distance.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(3)
        >>> cohort = Cohort(round=0, clients=np.arange(3), draws=np.zeros(3, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(3, dtype=np.int64),
        ...                 noise_stds=one)
        >>> updates = torch.tensor([[1.0], [2.0], [1000.0]])
        >>> GeometricMedian(steps=200).combine(updates, cohort).round(decimals=2)
        tensor([2.])
    """

    name: ClassVar[str] = "geometric-median"
    needs: ClassVar[str] = "fewer than half of the draws lie"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "Pillutla et al., IEEE TSP 2022 (general knowledge)"

    steps: int = 32
    smoothing: float = 1e-6
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, at_least=1)
        number("smoothing", self.smoothing, above=0, below=1)
        number("tolerance", self.tolerance, at_least=0, below=1)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The geometric median of the rows."""
        import torch

        checked_updates(updates, cohort)
        point = updates.mean(0)
        distances = torch.linalg.vector_norm(updates - point, dim=1)
        scale = float(distances.mean())
        if scale == 0.0:
            return point
        for _ in range(self.steps):
            closeness = 1.0 / torch.clamp(distances / scale, min=self.smoothing)
            moved = (closeness / closeness.sum()) @ updates
            change = float(torch.linalg.vector_norm(moved - point))
            point = moved
            if change <= self.tolerance * scale:
                break
            distances = torch.linalg.vector_norm(updates - point, dim=1)
        return point

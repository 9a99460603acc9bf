# SPDX-License-Identifier: Apache-2.0
"""Does a client send the noise it declares: Robust-HDP's estimate held against the declaration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, number
from dpcohort.aggregation.cohort import Cohort
from dpcohort.aggregation.rules.estimated_noise import EstimatedNoise
from dpcohort.aggregation.weights import checked_updates

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NoiseCheck", "check_declared_noise"]


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseCheck:
    """What a round's updates say about the noise their senders declared.

    Attributes:
        clients: client position of each draw.
        ratio: noise shown over noise declared, divided by the cohort's median of it; NaN for draws
            without declared noise.
        too_little: draws that show clearly less noise than declared: their client is less
            protected than it believes.
        too_much: draws that show clearly more: more noise, or data unlike anybody else's.
    """

    clients: tuple[int, ...]
    ratio: FloatArray
    too_little: BoolArray
    too_much: BoolArray

    @property
    def suspicious(self) -> tuple[int, ...]:
        """The clients whose draws do not show what was declared."""
        odd = self.too_little | self.too_much
        return tuple(sorted({self.clients[i] for i in np.flatnonzero(odd)}))


def check_declared_noise(
    updates: Tensor,
    cohort: Cohort,
    *,
    factor: float = 2.5,
    estimate: EstimatedNoise | None = None,
) -> NoiseCheck:
    """Hold the noise that updates show against the noise that was declared.

    The estimate is that of Robust-HDP (Malekmohammadi et al., ICML 2024): robust PCA splits the
    updates into what they share and the rest, and the rest is mostly noise. Step sizes scale all
    updates of a round alike, so only ratios count, against the median of the cohort: it holds as
    long as fewer than half of the draws lie. The estimate shrinks large noise against small, by a
    factor of almost 2 in the tests, so the check is coarse: a factor near 1 accuses honest clients.
    Computed from noisy updates: no privacy is spent.

    Args:
        updates: of the draws of a round, with their noise.
        cohort: the draws, with their declared noise.
        factor: how far from the median a ratio may be, either way.
        estimate: settings of the estimate.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> sent = torch.tensor([1.0, 2.0, 1.0, 2.0, 0.1])  # the last one declared 2
        >>> updates = sent[:, None] * torch.randn(5, 4000, generator=generator)
        >>> one = np.ones(5)
        >>> cohort = Cohort(round=0, clients=np.arange(5), draws=np.zeros(5, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(5, dtype=np.int64),
        ...                 noise_stds=np.array([1.0, 2.0, 1.0, 2.0, 2.0]))
        >>> check_declared_noise(updates, cohort).suspicious
        (4,)
    """
    number("factor", factor, above=1)
    shown = (estimate or EstimatedNoise()).noise(checked_updates(updates, cohort))
    declared = cohort.noise_stds > 0.0
    ratio = np.full(len(cohort), np.nan)
    ratio[declared] = shown[declared] / cohort.noise_stds[declared]
    middle = float(np.median(ratio[declared])) if declared.any() else 0.0
    if middle > 0.0:
        ratio = ratio / middle
    # Comparisons with NaN are False: who declares no noise is not accused.
    with np.errstate(invalid="ignore"):
        too_little, too_much = ratio < 1.0 / factor, ratio > factor
    return NoiseCheck(
        clients=tuple(int(k) for k in cohort.clients),
        ratio=ratio,
        too_little=too_little & (middle > 0.0),
        too_much=too_much & (middle > 0.0),
    )

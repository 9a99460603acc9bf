# SPDX-License-Identifier: Apache-2.0
"""Aggregations that trust nothing declared, and a check of what was.

The clipped mean and the geometric median limit what one draw can do, as the product's trimmed mean
does; ``EstimatedNoise`` weighs by the noise that updates show (Robust-HDP), and
``check_declared_noise`` holds that against the noise that was declared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpcohort import plugin
from dpcohort.aggregation import Cohort, checked_updates, weighted_sum
from dpcohort_lab.checks import FloatArray, number, whole_number

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ClippedMean",
    "EstimatedNoise",
    "GeometricMedian",
    "NoiseCheck",
    "check_declared_noise",
    "low_rank_and_sparse",
]

BoolArray = NDArray[np.bool_]


@plugin("aggregation")
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


@plugin("aggregation")
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


#: Growth of the penalty in each step of the augmented Lagrangian, its start, its largest value, and
#: the relative error of ``L + S`` at which to stop.
_GROWTH, _START, _LARGEST, _TOLERANCE = 1.5, 1.25, 1e7, 5e-8


@plugin("aggregation")
@dataclass(frozen=True, kw_only=True)
class EstimatedNoise:
    """``w_i`` proportional to ``1 / ||S_i||^2``, where ``X = L + S`` by robust PCA of the updates.

    Robust-HDP of Malekmohammadi et al. (ICML 2024): L, of low rank, is what the updates share, and
    S_i what draw i adds to it, mostly its noise. Nothing declared is used, so a client gains
    nothing by declaring less noise than it sends. Where this differs: they estimate once, in the
    first round with all clients present; here cohorts change, so each round is estimated anew. The
    estimates keep the order of the noise but shrink large noise against small, and what only one
    client knows counts as its noise too. Computed from noisy updates: post-processing, no privacy
    is spent.

    Attributes:
        coordinates: how many coordinates, evenly spaced, the estimate reads; at most all.
        floor: smallest std that counts, as a fraction of the cohort's largest.
        steps: largest number of steps of the robust PCA.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> stds = torch.tensor([2.0, 0.1, 4.0, 0.5])
        >>> updates = 1.0 + stds[:, None] * torch.randn(4, 5000, generator=generator)
        >>> EstimatedNoise().noise(updates).argsort()
        array([1, 3, 0, 2])
    """

    name: ClassVar[str] = "estimated-noise"
    needs: ClassVar[str] = "nothing declared; clients that share most of what they know"
    leaks: ClassVar[str] = "which updates look noisy"
    reference: ClassVar[str] = "Robust-HDP: Malekmohammadi et al., ICML 2024, each round anew"

    coordinates: int = 20_000
    floor: float = 1e-3
    steps: int = 200

    def __post_init__(self) -> None:
        whole_number("coordinates", self.coordinates, at_least=1)
        number("floor", self.floor, above=0, at_most=1)
        whole_number("steps", self.steps, at_least=1)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean weighted by the inverse of the estimated noise variance."""
        noise = self.noise(checked_updates(updates, cohort))
        largest = float(noise.max())
        if largest == 0.0:
            return updates.mean(0)
        inverse = np.maximum(noise / largest, self.floor) ** -2.0
        return weighted_sum(updates, inverse / inverse.sum())

    def noise(self, updates: Tensor) -> FloatArray:
        """The estimated std of each update's noise, in units of the updates."""
        import torch

        stride = math.ceil(updates.shape[1] / self.coordinates)
        read = updates[:, ::stride].to(torch.float64)
        peak = float(read.abs().max())
        if peak == 0.0:
            return np.zeros(updates.shape[0])
        # Scaled, so that no square or inverse of huge or tiny updates leaves the range.
        _, sparse = low_rank_and_sparse(read / peak, steps=self.steps)
        stds = sparse.square().mean(1).sqrt().cpu().numpy()
        return np.asarray(peak * stds, dtype=np.float64)


def low_rank_and_sparse(matrix: Tensor, *, steps: int = 200) -> tuple[Tensor, Tensor]:
    """Robust PCA: L and S with ``matrix = L + S``, of least ``||L||_* + lambda ||S||_1``.

    Principal component pursuit with ``lambda = 1 / sqrt(largest side)`` (Candes et al., Robust
    Principal Component Analysis?, 2011) by the inexact augmented Lagrangian method (Lin, Chen and
    Ma, 2010); both from general knowledge, checked in the tests on matrices whose parts are known.

    Args:
        matrix: any finite matrix.
        steps: largest number of steps.

    Example:
        >>> import torch
        >>> matrix = torch.ones(20, 30, dtype=torch.float64)
        >>> matrix[3, 4] = 9.0
        >>> low, sparse = low_rank_and_sparse(matrix)
        >>> torch.nonzero(sparse.abs() > 0.1).tolist()
        [[3, 4]]
    """
    import torch

    sparse = torch.zeros_like(matrix)
    size = float(torch.linalg.vector_norm(matrix))
    if size == 0.0:
        return matrix.clone(), sparse
    weight = 1.0 / math.sqrt(max(matrix.shape))
    largest = float(torch.linalg.matrix_norm(matrix, 2))
    dual = matrix / max(largest, float(matrix.abs().max()) / weight)
    penalty = _START / largest
    low = matrix
    for _ in range(steps):
        shifted = matrix - sparse + dual / penalty
        left, values, right = torch.linalg.svd(shifted, full_matrices=False)
        low = (left * torch.clamp(values - 1.0 / penalty, min=0.0)) @ right
        sparse = torch.nn.functional.softshrink(matrix - low + dual / penalty, weight / penalty)
        rest = matrix - low - sparse
        if float(torch.linalg.vector_norm(rest)) <= _TOLERANCE * size:
            break
        dual = dual + penalty * rest
        penalty = min(penalty * _GROWTH, _LARGEST * _START / largest)
    return low, sparse


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


def check_declared_noise(updates: Tensor, cohort: Cohort, *, factor: float = 2.5) -> NoiseCheck:
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
    shown = EstimatedNoise().noise(checked_updates(updates, cohort))
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

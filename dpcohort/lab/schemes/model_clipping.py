# SPDX-License-Identifier: Apache-2.0
"""Model-difference clipping (Zhang et al.): the unit is everything a client holds.

X. Zhang, X. Chen, M. Hong, S. Wu and J. Yi, "Understanding clipping for federated learning:
convergence and client-level differential privacy", ICML 2022, arXiv 2106.13673 (abstract only; the
algorithm as generally known). A client trains Q plain steps without noise, clips the difference of
models to length c, adds noise and uploads:

    update_k = clip_c(w - w_k) + N(0, (z_k c)^2).

Taking a client's whole data away moves its upload by at most c, so T_k uploads are one Gaussian
mechanism with mu = sqrt(T_k)/z_k, and z_k comes from the exact Gaussian curve for the client's own
budget. The published noise formula could not be read, so there is no formula mode. No amplification
by sampling clients is taken, because the server sees who uploads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number, whole_number
from dpcohort.clients import Population
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.certified_noise import certified_noise, sampled_epsilon
from dpcohort.lab.schemes.receipt import Outcome, scheme_receipts

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["ModelClipping", "clip_update"]


def clip_update(update: Tensor, clip: float) -> Tensor:
    """The update, shortened to length c; zero if it is not finite.

    Example:
        >>> import torch
        >>> clip_update(torch.tensor([3.0, 4.0]), 1.0)
        tensor([0.6000, 0.8000])
    """
    from dpcohort.engine.clipping import CLIP_SLACK  # torch: only training needs it

    length = float(update.double().norm())
    if not math.isfinite(length):
        return update.new_zeros(update.shape)
    return update * min(1.0, clip * (1 - CLIP_SLACK) / max(length, 1e-300))


@dataclass(frozen=True, kw_only=True)
class ModelClipping:
    """Client-level noise on clipped model differences.

    Attributes:
        mode: ``honest`` only.
        local_steps: Q, plain steps of a participation.
        update_clip: c, length of an update.

    Example:
        >>> ModelClipping().card.unit
        'client'
    """

    mode: Mode = "honest"
    local_steps: int = 5
    update_clip: float = 1.0

    def __post_init__(self) -> None:
        whole_number("local_steps", self.local_steps, at_least=1)
        number("update_clip", self.update_clip, above=0)

    @property
    def card(self) -> Card:
        """The scheme in words."""
        return Card(
            name="model-clipping",
            title="clipped difference of models, noise by the client",
            unit="client",
            neighbours="zero-out",
            sees="each client's update",
            accountant="exact Gaussian curve",
            needs="nothing",
            reference="Zhang et al., ICML 2022, arXiv 2106.13673",
            source="abstract only",
        )

    def noise_multipliers(self, population: Population, uses: IntArray) -> FloatArray:
        """z_k of each client's uploads."""
        return certified_noise(population, rates=np.ones(len(population)), steps=uses)

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        from dpcohort.lab.schemes.rounds import mean_of_cohort, participations, train_rounds

        cohorts = federation.cohorts()
        noise = self.noise_multipliers(
            federation.population, participations(cohorts, len(federation))
        )
        spent = np.zeros(len(federation), dtype=np.int64)

        def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
            spent[k] += 1
            raw = weights - self._trained(federation, t, k, weights)
            std = float(noise[k]) * self.update_clip
            return clip_update(raw, self.update_clip) + std * federation.noise(t, k), std

        everything = np.ones(len(federation))
        return train_rounds(
            federation,
            mean_of_cohort(federation, cohorts, update),
            card=self.card,
            mode=self.mode,
            receipts=lambda: scheme_receipts(
                federation.population,
                self.card,
                self.mode,
                claimed=np.full(len(federation), np.nan),
                certified=sampled_epsilon(federation.population, noise, everything, spent),
                noise=noise,
                uses=spent,
                assumptions=[
                    "all of a client's records are one unit; that it took part is public",
                ],
            ),
        )

    def _trained(self, federation: Federation, t: int, k: int, weights: Tensor) -> Tensor:
        """Q plain steps, not clipped and without noise. SENSITIVE."""
        local, alpha = weights.clone(), federation.step_size(t)
        size = int(federation.batch_sizes[k])
        for step in range(self.local_steps):
            batch = federation.batch(k, rate=1.0, round=t, step=step, batch_size=size)
            local = local - alpha * federation.clipped_sum(local, k, batch) / size
        return local

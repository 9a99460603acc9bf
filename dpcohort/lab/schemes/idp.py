# SPDX-License-Identifier: Apache-2.0
"""IDP-SGD of Boenisch et al.: one noise for all, individual clips (Scale) or rates (Sample).

F. Boenisch, C. Muehl, A. Dziedzic, R. Rinberg and N. Papernot, "Have it your way: individualized
privacy assignment for DP-SGD", NeurIPS 2023 (authors' code read). One noisy sum over everyone's
records a round, here through secure aggregation, so that one noise does for all clients:

    w <- w - alpha (sum of clipped gradients + N(0, (z C)^2)) / B.

- *Scale*: z_k is what client k's budget needs at the common rate r; z is the mean of the z_k over
  records, and client k's records are clipped at C_k = C z / z_k. For them the noise is
  z C = z_k C_k, which is what the accountant asked for.
- *Sample*: one clip, one z, and rates q_k such that epsilon(z, q_k, T) = epsilon_k for each client
  and the mean of q_k over records is r.

Both are sound given sound accounting of single records. The published code calibrates by Renyi
moments (``formula`` mode: :mod:`dpcohort.lab.schemes.renyi`, claimed), which is safe and a little
generous; the honest mode calibrates by privacy loss distributions. Certified is PLD in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpcohort._validate import FloatArray, choice
from dpcohort.clients import Population
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.certified_noise import certified_noise, sampled_epsilon
from dpcohort.lab.schemes.rates import (
    SMALLEST_RATE,
    certified_rates,
    common_noise,
    largest_rates,
)
from dpcohort.lab.schemes.receipt import Outcome, scheme_receipts
from dpcohort.lab.schemes.renyi import renyi_epsilon, renyi_noise, renyi_rate

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["IDP", "IndividualNoise", "sample_rates", "scale_clips"]


@dataclass(frozen=True, kw_only=True)
class IndividualNoise:
    """One noise, and what is individual under it.

    Attributes:
        noise_multiplier: z, noise on the sum in units of C.
        clips: C_k / C of each client.
        rates: Poisson rate of each client's records, q_k.
    """

    noise_multiplier: float
    clips: FloatArray
    rates: FloatArray

    @property
    def own_noise(self) -> FloatArray:
        """The noise in units of each client's own clip, z C / C_k."""
        return np.asarray(self.noise_multiplier / self.clips, dtype=np.float64)


def scale_clips(population: Population, own_noise: FloatArray, *, rate: float) -> IndividualNoise:
    """Scale: individual clips under one noise and one rate.

    Args:
        population: sizes and budgets.
        own_noise: z_k that each client's budget asks for at the common rate.
        rate: r, the same for all records.

    Example:
        >>> people = Population.from_arrays(sizes=[50, 50], epsilon=[1.0, 2.0], delta=1e-5)
        >>> found = scale_clips(people, np.array([4.0, 2.0]), rate=0.1)
        >>> found.noise_multiplier, found.clips.round(2).tolist(), found.own_noise.round(2).tolist()
        (3.0, [0.75, 1.5], [4.0, 2.0])
    """
    some = ~population.public
    sizes = population.sizes[some].astype(np.float64)
    mean = float(own_noise[some] @ sizes / sizes.sum()) if some.any() else 0.0
    clips = np.ones(len(population))
    # z_k = z / clip must not fall below what was asked for, not even by rounding.
    clips[some] = mean / own_noise[some] * (1 - 1e-12)
    return IndividualNoise(
        noise_multiplier=mean, clips=clips, rates=np.full(len(population), float(rate))
    )


def sample_rates(
    population: Population,
    *,
    rate: float,
    steps: int,
) -> IndividualNoise:
    """Sample: individual rates under one noise and one clip, by our accountant.

    Args:
        population: sizes and budgets.
        rate: r, the mean rate over records.
        steps: T.

    Example:
        >>> people = Population.from_arrays(sizes=[50, 50], epsilon=[1.0, 2.0], delta=1e-5)
        >>> found = sample_rates(people, rate=0.1, steps=100)
        >>> bool(found.rates[0] < 0.1 < found.rates[1])
        True
    """
    some = ~population.public
    rates = np.full(len(population), float(rate))
    if not some.any():
        return IndividualNoise(noise_multiplier=0.0, clips=np.ones(len(population)), rates=rates)
    budgets = {
        "epsilon": population.epsilon[some],
        "delta": population.delta[some],
        "steps": np.full(int(some.sum()), steps),
    }
    z = common_noise(mean_rate=rate, weights=population.sizes[some], **budgets)
    rates[some] = largest_rates(noise_multiplier=z, **budgets)
    return IndividualNoise(noise_multiplier=z, clips=np.ones(len(population)), rates=rates)


@dataclass(frozen=True, kw_only=True)
class IDP:
    """One noisy sum a round; individual clips or rates.

    Attributes:
        variant: ``scale`` or ``sample``.
        mode: ``honest``, or ``formula`` for Renyi accounting as published.

    Example:
        >>> IDP(variant="sample").card.name
        'idp-sample'
    """

    variant: Literal["scale", "sample"]
    mode: Mode = "honest"

    def __post_init__(self) -> None:
        choice("variant", self.variant, ["scale", "sample"])

    @property
    def card(self) -> Card:
        """The scheme in words."""
        what = "clips" if self.variant == "scale" else "sampling rates"
        return Card(
            name=f"idp-{self.variant}",
            title=f"one noisy sum of everybody's records, individual {what}",
            unit="record",
            neighbours="zero-out",
            sees="the noisy sum only",
            accountant="PLD of the Poisson-sampled Gaussian",
            needs="secure aggregation with trusted noise; every client in every round",
            reference="Boenisch et al., NeurIPS 2023",
            source="authors' code read",
            formula="Renyi accounting instead of PLD (sound, more noise)",
        )

    def individual_noise(
        self, population: Population, *, rate: float, steps: int
    ) -> IndividualNoise:
        """The noise, and each client's clip and rate."""
        if self.variant == "scale":
            return scale_clips(population, self._own_noise(population, rate, steps), rate=rate)
        found = sample_rates(population, rate=rate, steps=steps)
        if self.mode == "honest":
            return found
        return IndividualNoise(
            noise_multiplier=found.noise_multiplier,
            clips=found.clips,
            rates=_renyi_rates(population, found, steps),
        )

    def _own_noise(self, population: Population, rate: float, steps: int) -> FloatArray:
        count = len(population)
        if self.mode == "honest":
            return certified_noise(
                population, rates=np.full(count, rate), steps=np.full(count, steps)
            )
        some, found = ~population.public, np.zeros(count)
        found[some] = renyi_noise(
            epsilon=population.epsilon[some],
            delta=population.delta[some],
            sampling_rate=rate,
            steps=steps,
        )
        return found

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        from dpcohort.lab.schemes.rounds import train_rounds

        people, clip = federation.population, federation.training.clip
        rate = float(federation.batch_sizes.sum() / federation.sizes.sum())
        plan = self.individual_noise(people, rate=rate, steps=federation.training.rounds)
        denominator = rate * federation.total_size
        std = plan.noise_multiplier * clip / denominator
        spent = np.zeros(len(federation), dtype=np.int64)

        def update(t: int, weights: Tensor) -> tuple[Tensor, float]:
            spent[plan.rates > 0] += 1
            total = weights.new_zeros(weights.shape)
            for k in range(len(federation)):
                batch = federation.batch(k, rate=float(plan.rates[k]), round=t)
                total += federation.clipped_sum(weights, k, batch, clip * float(plan.clips[k]))
            alpha = federation.step_size(t)
            noisy = total / denominator + std * federation.noise(t, len(federation))
            return alpha * noisy, alpha * std

        return train_rounds(
            federation,
            update,
            card=self.card,
            mode=self.mode,
            receipts=lambda: scheme_receipts(
                people,
                self.card,
                self.mode,
                claimed=self._claimed(people, plan, spent),
                certified=sampled_epsilon(people, plan.own_noise, plan.rates, spent),
                noise=np.where(people.public, np.nan, plan.own_noise),
                uses=spent,
                assumptions=["the server sees the noisy sum only, never a client's own"],
            ),
            notes=lambda: _notes(plan, people),
        )

    def _claimed(self, people: Population, plan: IndividualNoise, steps: np.ndarray) -> FloatArray:
        found = np.full(len(people), np.nan)
        if self.mode == "formula":
            for k in np.flatnonzero(~people.public).tolist():
                found[k] = renyi_epsilon(
                    noise_multiplier=float(plan.own_noise[k]),
                    rate=float(plan.rates[k]),
                    steps=int(steps[k]),
                    delta=float(people.delta[k]),
                )
        return found


def _renyi_rates(population: Population, plan: IndividualNoise, steps: int) -> FloatArray:
    """Rates at the same z by Renyi moments, then certified like all others."""
    z, rates = plan.noise_multiplier, plan.rates.copy()
    for k in np.flatnonzero(~population.public).tolist():
        budget = {"epsilon": float(population.epsilon[k]), "delta": float(population.delta[k])}
        rate = renyi_rate(noise_multiplier=z, steps=steps, **budget)
        rate = rate if rate >= SMALLEST_RATE else 0.0
        rates[k] = certified_rates([rate], noise_multiplier=z, steps=steps, **budget)[0]
    return rates


def _notes(plan: IndividualNoise, people: Population) -> list[str]:
    out = int(((plan.rates == 0) & ~people.public).sum())
    return (
        [f"{out} clients sit out: at this noise no useful rate keeps their budget."] if out else []
    )

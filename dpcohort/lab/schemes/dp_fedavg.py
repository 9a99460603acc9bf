# SPDX-License-Identifier: Apache-2.0
"""The yardstick: DP-FedAvg with each client's own noise, as this project trains by default.

A client in the cohort takes T^l steps. Each step draws a Poisson batch at rate r_k, sums clipped
gradients, adds N(0, (z_k C)^2) and divides by the public B_k. z_k is the least noise for the
client's own (epsilon_k, delta_k) after its T_k T^l steps; cohorts are uniform and drawn before
training. This is Algorithm 1 of arXiv 2602.22633 with uniform cohorts and the tight accountant;
``formula`` has the paper's own noise and batches of fixed size instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.clients import Population
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.certified_noise import certified_noise, sampled_epsilon
from dpcohort.lab.schemes.receipt import Outcome, scheme_receipts

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["DPFedAvg", "noisy_local_steps"]


@dataclass(frozen=True, kw_only=True)
class DPFedAvg:
    """DP-FedAvg, uniform cohorts.

    Attributes:
        mode: ``honest`` for the tight accountant, ``formula`` for the paper's noise.

    Example:
        >>> DPFedAvg().card.neighbours, DPFedAvg(mode="formula").card.neighbours
        ('zero-out', 'replace-one')
    """

    mode: Mode = "honest"

    @property
    def card(self) -> Card:
        """The scheme in words."""
        printed = self.mode == "formula"
        return Card(
            name="dp-fedavg",
            title="own noise of each client in each local step",
            unit="record",
            neighbours="replace-one" if printed else "zero-out",
            sees="each client's update",
            accountant="PLD of the sampled Gaussian",
            needs="nothing",
            reference="Xu, Zhang and Huang, arXiv 2602.22633, Algorithm 1",
            source="read",
            formula="the paper's noise (its Lemmas 1 and 2) with batches of fixed size",
        )

    @property
    def sampler(self) -> str:
        """How batches are drawn."""
        return "fixed" if self.mode == "formula" else "poisson"

    def noise_multipliers(
        self, population: Population, *, rates: FloatArray, steps: IntArray
    ) -> FloatArray:
        """z_k of each client; 0 for public clients, NaN for those without steps."""
        if self.mode == "honest":
            return certified_noise(population, rates=rates, steps=steps)
        found = np.where(population.public, 0.0, np.nan)
        some = ~population.public & (steps > 0)
        if some.any():
            found[some] = paper_noise_multiplier(
                epsilon=population.epsilon[some],
                delta=population.delta[some],
                sampling_rate=rates[some],
                steps=steps[some],
            )
        return found

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        from dpcohort.lab.schemes.rounds import mean_of_cohort, participations, train_rounds

        people, local = federation.population, federation.training.local_steps
        cohorts, rates = federation.cohorts(), federation.rates
        steps = local * participations(cohorts, len(people))
        noise = self.noise_multipliers(people, rates=rates, steps=steps)
        spent = np.zeros(len(people), dtype=np.int64)

        def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
            spent[k] += local
            return noisy_local_steps(
                federation,
                t,
                k,
                weights,
                rate=float(rates[k]),
                noise=float(noise[k]),
                fixed=self.mode == "formula",
            )

        return train_rounds(
            federation,
            mean_of_cohort(federation, cohorts, update),
            card=self.card,
            mode=self.mode,
            receipts=lambda: scheme_receipts(
                people,
                self.card,
                self.mode,
                claimed=people.epsilon if self.mode == "formula" else np.full(len(people), np.nan),
                certified=sampled_epsilon(people, noise, rates, spent, sampler=self.sampler),
                noise=noise,
                uses=spent,
                assumptions=["batches are drawn by the client and known to nobody else"],
            ),
        )


def noisy_local_steps(
    federation: Federation,
    t: int,
    k: int,
    weights: Tensor,
    *,
    rate: float,
    noise: float,
    fixed: bool = False,
) -> tuple[Tensor, float]:
    """T^l steps of DP-SGD of one client from the global model.

    Args:
        federation: clients, data, model.
        t: the round.
        k: the client.
        weights: the global model.
        rate: Poisson rate of its batches.
        noise: z, noise on the clipped sum in units of the clip.
        fixed: batches of fixed size B_k instead.

    Returns:
        Its update (what to subtract from the model), and the noise std in it.
    """
    training, local = federation.training, weights.clone()
    alpha, size = federation.step_size(t), int(federation.batch_sizes[k])
    std = noise * training.clip / size
    for step in range(training.local_steps):
        batch = federation.batch(k, rate=rate, round=t, step=step, batch_size=size if fixed else 0)
        raw = federation.clipped_sum(local, k, batch, training.clip)
        local = local - alpha * (raw / size + std * federation.noise(t, k, step=step))
    return weights - local, alpha * std * float(np.sqrt(training.local_steps))

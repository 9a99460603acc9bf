# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of the paper, line by line: one client after the other, slow and obvious.

The numbers in the comments are the lines of Algorithm 1. Lines 3, 4 and 20-22 (selection, counts,
noise) are the plan's. Two lines are built otherwise than printed: line 8, because the client's
update already contains the step size, and line 16, because dividing by the number of records that
happened to be drawn would tell that number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpcohort.aggregation import Cohort
from dpcohort.engine.clipping import (
    Loss,
    can_be_mapped,
    clip_rows,
    cross_entropy,
    per_example_gradients,
    refuse_unfit_layers,
)
from dpcohort.engine.experiment import Engine, Experiment, member_lattice, release_sum
from dpcohort.engine.lattice import Lattice
from dpcohort.engine.randomness import draw_positions, standard_noise_
from dpcohort.engine.rounds import Arrived

Records = tuple[Tensor, Tensor]


class ReferenceEngine(Engine):
    """Trains a model as Algorithm 1 says.

    Args:
        model: any module whose examples do not mix; its parameters are w_{0,0}.
        experiments: plan, records, streams, optimiser and aggregation of each.
        loss: one number an example.
        vectorised: per-example gradients by ``vmap``; None tries, and loops where it cannot.
    """

    def __init__(
        self,
        model: nn.Module,
        experiments: Sequence[Experiment],
        *,
        loss: Loss = cross_entropy,
        vectorised: bool | None = None,
    ) -> None:
        refuse_unfit_layers(model)
        super().__init__(model, experiments)  # 2, 5 and 8 are there
        if vectorised is None:
            some = self._records.gather(self._records.indices[:2])
            vectorised = can_be_mapped(self._model, loss, *some)
        self._gradients = per_example_gradients(self._model, loss, vectorised=vectorised)

    def updates(self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]) -> list[Arrived]:
        """The noisy updates of a round of every experiment, one draw after the other."""
        together = zip(self._experiments, parameters, cohorts, strict=True)
        return [
            Arrived(
                cohort,
                self._private_sum(one, w, cohort)[None]
                if one.releases_sums
                else torch.stack(
                    [self._client_update(one, w, cohort, i) for i in range(len(cohort))]
                ),
            )  # 6-7
            for one, w, cohort in together
        ]

    def _client_update(
        self, experiment: Experiment, global_weights: Tensor, cohort: Cohort, i: int
    ) -> Tensor:  # 9
        plan, k, streams = experiment.plan, int(cohort.clients[i]), experiment.streams
        where = {"round": cohort.round, "client": k, "draw": int(cohort.draws[i])}
        noisy = self._noisy_mean if streams.is_reproducible else self._private_mean
        weights = global_weights.clone()  # 10
        for step in range(plan.training.local_steps):  # 12
            name = {**where, "step": step}
            records = self._batch(experiment, cohort, i, step)  # 13
            alpha = experiment.step_size(cohort.round, step)
            if cohort.weights is not None:
                alpha *= float(cohort.weights[i])
            weights = weights - alpha * noisy(experiment, weights, records, cohort, i, name)
        return global_weights - weights  # 18-19

    def _batch(self, experiment: Experiment, cohort: Cohort, i: int, step: int) -> Records:
        plan, k = experiment.plan, int(cohort.clients[i])
        positions = draw_positions(
            experiment.streams,
            plan.contract.sampler,
            size=int(plan.population.sizes[k]),
            rate=float(plan.sampling_rates[k]),
            batch_size=int(cohort.batch_sizes[i]),
            round=cohort.round,
            client=k,
            draw=int(cohort.draws[i]),
            step=step,
        )
        return experiment.records.gather(experiment.records.rows(k, positions))

    def _noisy_mean(
        self, experiment: Experiment, weights: Tensor, records: Records, cohort: Cohort, i: int,
        name: dict[str, int],
    ) -> Tensor:  # fmt: skip
        """Lines 14 to 17 of a simulation, in floating point."""
        sigma, size = float(cohort.noise_stds[i]), int(cohort.batch_sizes[i])  # 11
        if not experiment.adds_noise_at(name["step"]):
            sigma = 0.0  # this noise comes with the mean
        clip = experiment.plan.training.clip
        mean = self._clipped_sum(weights, records, clip) / size  # 16, by the public B
        return mean + sigma * standard_noise_(torch.empty_like(weights), experiment.streams, **name)

    def _private_mean(
        self, experiment: Experiment, weights: Tensor, records: Records, cohort: Cohort, i: int,
        name: dict[str, int],
    ) -> Tensor:  # fmt: skip
        """Lines 14 to 17 on a lattice, record by record, with noise of a cryptographic stream."""
        multiplier, size = float(cohort.noise_multipliers[i]), int(cohort.batch_sizes[i])  # 11
        clip = experiment.plan.training.clip
        if multiplier == 0.0:  # a public client
            return self._clipped_sum(weights, records, clip) / size
        lattice = Lattice(multiplier, clip)
        total = self._integers(weights, records, lattice)  # 14-16
        key = experiment.streams.noise_key(**name)
        return lattice.release(total, key, scale=1 / size, dtype=weights.dtype)  # 17

    def _private_sum(self, experiment: Experiment, weights: Tensor, cohort: Cohort) -> Tensor:
        """Lines 10 to 19 of a whole cohort whose noise is pooled: one sum, and its noise once."""
        total = torch.zeros(weights.numel(), dtype=torch.int64, device=weights.device)
        for i in range(len(cohort)):
            lattice = member_lattice(cohort, experiment.plan, i)
            records = self._batch(experiment, cohort, i, 0)  # 13
            if lattice is not None:
                total += self._integers(weights, records, lattice)  # 14-16
        return release_sum(total, cohort, experiment, dtype=weights.dtype)  # 17

    def _integers(self, weights: Tensor, records: Records, lattice: Lattice) -> Tensor:
        total = torch.zeros(weights.numel(), dtype=torch.int64, device=weights.device)
        for x, y in zip(*records, strict=True):
            total += lattice.clipped_sum(self._gradients(weights, x[None], y[None]))
        return total

    def _clipped_sum(self, weights: Tensor, records: Records, clip: float) -> Tensor:
        if records[0].shape[0] == 0:
            return torch.zeros_like(weights)
        raw = self._gradients(weights, *records)  # 14
        factors, rows = clip_rows(raw, clip)  # 15
        return factors @ rows

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
from dpcohort.engine._experiment import Draw, Engine, Experiment, member_lattices, release_sum
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._lattice import Lattice
from dpcohort.engine._randomness import standard_noise_
from dpcohort.engine._rounds import CohortUpdates
from dpcohort.engine.clipping import (
    Loss,
    can_be_mapped,
    clip_rows,
    cross_entropy,
    per_example_gradients,
    refuse_unfit_layers,
)
from dpcohort.engine.clipping._network import made_up_targets
from dpcohort.models._each_alone import made_up_inputs
from dpcohort.models._moments import loss_in_training


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
        loss = self._records.loss(loss_in_training(self._model, loss))
        inputs, targets = self._records.gather(self._records.indices[:2])
        some = made_up_inputs(self._model, inputs, 2), made_up_targets(targets, 2)
        if vectorised is None:
            vectorised = can_be_mapped(self._model, loss, *some)
        self._gradients = per_example_gradients(self._model, loss, vectorised=vectorised)
        if not experiments[0].streams.is_reproducible:
            self.isolated = IsolatedModel(self._model, loss, *some, shared=False)

    def updates(
        self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> list[CohortUpdates]:
        """The noisy updates of a round of every experiment, one draw after the other."""
        arrived = []
        for e, experiment in enumerate(self._experiments):
            draws = self._draws(e, cohorts[e])
            if experiment.releases_sums:
                updates = [self._private_sum(draws, parameters[e])]
            else:
                updates = [self._client_update(draw, parameters[e]) for draw in draws]
            arrived.append(CohortUpdates(cohorts[e], torch.stack(updates)))  # 6-7
        return arrived

    def _client_update(self, draw: Draw, global_weights: Tensor) -> Tensor:  # 9
        streams = draw.experiment.streams
        noisy = self._noisy_mean if streams.is_reproducible else self._private_mean
        weights = global_weights.clone()  # 10
        for step in range(draw.experiment.plan.training.local_steps):  # 12
            gradient = noisy(draw, weights, step)
            correction = draw.correction(weights, global_weights)
            if correction is not None:  # against client drift; not in the paper
                gradient = gradient + correction
            weights = weights - draw.step_size(step) * gradient
        return global_weights - weights  # 18-19

    def _noisy_mean(self, draw: Draw, weights: Tensor, step: int) -> Tensor:
        """Lines 13 to 17 of a simulation, in floating point."""
        mean = self._clipped_sum(draw, weights, step) / draw.batch_size  # 16, by the public B
        streams, noise = draw.experiment.streams, torch.empty_like(weights)
        standard_noise_(noise, streams, **draw.name, step=step)
        return mean + draw.noise_std(step) * noise  # 11 and 17

    def _private_mean(self, draw: Draw, weights: Tensor, step: int) -> Tensor:
        """Lines 13 to 17 on a lattice, record by record, with noise of a cryptographic stream."""
        if draw.noise_multiplier == 0.0:  # a public client
            return self._clipped_sum(draw, weights, step) / draw.batch_size
        lattice = Lattice(draw.noise_multiplier, draw.clip)
        total = self._integers(draw, weights, step, lattice)  # 14-16
        key = draw.experiment.streams.noise_key(**draw.name, step=step)
        return lattice.release(total, key, scale=1 / draw.batch_size, dtype=weights.dtype)  # 17

    def _private_sum(self, draws: Sequence[Draw], weights: Tensor) -> Tensor:
        """Lines 10 to 19 of a whole cohort with distributed noise: one sum, and its noise once."""
        experiment, cohort = draws[0].experiment, draws[0].cohort
        total = torch.zeros(weights.numel(), dtype=torch.int64, device=weights.device)
        for draw, lattice in zip(draws, member_lattices(cohort, experiment.plan), strict=True):
            if lattice is not None:
                total += self._integers(draw, weights, 0, lattice)  # 13-16
        return release_sum(total, cohort, experiment, dtype=weights.dtype)  # 17

    def _integers(self, draw: Draw, weights: Tensor, step: int, lattice: Lattice) -> Tensor:
        gather, rows = draw.experiment.records.gather, draw.rows(step)  # 13
        assert self.isolated is not None
        return self.isolated.clipped_sum(weights, lattice, rows, gather, draw.batch_size)  # 14-16

    def _clipped_sum(self, draw: Draw, weights: Tensor, step: int) -> Tensor:
        inputs, targets = draw.experiment.records.gather(draw.rows(step))  # 13
        if len(inputs) == 0:
            return torch.zeros_like(weights)
        raw = self._gradients(weights, inputs, targets)  # 14
        factors, rows = clip_rows(raw, draw.clip)  # 15
        return factors @ rows

# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of the paper, line by line: one client after the other, slow and obvious.

The numbers in the comments are the lines of Algorithm 1. Lines 3, 4 and 20-22 (selection, counts,
noise) are the plan's. Two lines are built otherwise than printed: line 8, because the client's
update already contains the step size, and line 16, because dividing by the number of records that
happened to be drawn would tell that number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.aggregation import AggregationRule, Cohort, Mean
from dpcohort.engine.clipping import Loss, PerExampleGradients, clip_rows, refuse_unfit_layers
from dpcohort.engine.clipping.per_example import can_be_mapped
from dpcohort.engine.experiment import Experiment, TrainingPlan, cohort_of
from dpcohort.engine.lattice import Lattice
from dpcohort.engine.randomness import Streams, draw_positions, standard_noise_
from dpcohort.engine.records import ClientRecords
from dpcohort.engine.rounds import (
    Arrived,
    EngineState,
    Evaluator,
    Optimiser,
    train_rounds,
)
from dpcohort.round_record import RoundRecord

__all__ = ["ReferenceEngine", "cross_entropy"]

Records = tuple[Tensor, Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example: cross-entropy of class scores."""
    return F.cross_entropy(outputs, targets, reduction="none")


class ReferenceEngine:
    """Trains a model as Algorithm 1 says.

    Args:
        plan: cohorts, noise, clip.
        model: any module whose examples do not mix; its parameters are w_{0,0}.
        records: the clients' data.
        streams: where batches and noise come from.
        optimiser: step sizes, momentum, average.
        aggregation: how updates are combined.
        loss: one number an example.
        evaluator: test set, None for none.
        evaluate_every: rounds between evaluations; the last round is always evaluated.
        vectorised: per-example gradients by ``vmap``; None tries, and loops where it cannot.
        merged_noise: one noise vector a round for all last local steps, see ``merged_noise``.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        model: nn.Module,
        records: ClientRecords,
        *,
        streams: Streams,
        optimiser: Optimiser | None = None,
        aggregation: AggregationRule | None = None,
        loss: Loss = cross_entropy,
        evaluator: Evaluator | None = None,
        evaluate_every: int = 1,
        vectorised: bool | None = None,
        merged_noise: bool = False,
    ) -> None:
        refuse_unfit_layers(model)
        records.check_against(plan)
        self._plan, self._records, self._streams = plan, records, streams
        self._optimiser, self._merged_noise = optimiser or Optimiser(), merged_noise
        self._server = Experiment(
            plan=plan,
            records=records,
            streams=streams,
            optimiser=self._optimiser,
            aggregation=aggregation or Mean(),
            merged_noise=merged_noise,
        ).server_step
        self._model = records.fit(model)
        if vectorised is None:
            vectorised = can_be_mapped(self._model, loss, *records.gather(records.indices[:2]))
        self._gradients = PerExampleGradients(self._model, loss, vectorised=vectorised)
        self._evaluator, self._evaluate_every = evaluator, evaluate_every

    def initial_state(self) -> EngineState:
        """The model as given, before the first round."""
        return EngineState(self._gradients.layout.flatten(self._model))  # 2

    def rounds(self, state: EngineState) -> Iterator[RoundRecord]:
        """Do the remaining rounds; after each, ``state`` is complete and its record is yielded."""
        rounds = train_rounds(  # 5
            self,
            [self._server],  # 8
            [state],
            rounds=self._plan.training.rounds,
            choose=lambda t: [cohort_of(self._plan, t)],
            evaluator=self._evaluator,
            evaluate_every=self._evaluate_every,
        )
        return (record for (record,) in rounds)

    def updates(self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]) -> list[Arrived]:
        """The noisy updates of a round."""
        (weights,), (cohort,) = parameters, cohorts
        updates = [self._client_update(weights, cohort, i) for i in range(len(cohort))]  # 6-7
        return [Arrived(cohort, torch.stack(updates))]

    def _client_update(self, global_weights: Tensor, cohort: Cohort, i: int) -> Tensor:  # 9
        plan, k = self._plan, int(cohort.clients[i])
        where = {"round": cohort.round, "client": k, "draw": int(cohort.draws[i])}
        weights = global_weights.clone()  # 10
        for step in range(plan.training.local_steps):  # 12
            positions = draw_positions(  # 13
                self._streams,
                plan.contract.sampler,
                size=int(plan.population.sizes[k]),
                rate=float(plan.sampling_rates[k]),
                batch_size=int(cohort.batch_sizes[i]),
                **where,
                step=step,
            )
            records = self._records.gather(self._records.rows(k, positions))
            noisy = self._noisy_mean if self._streams.is_reproducible else self._private_mean
            alpha = self._optimiser.step_size(plan, round=cohort.round, step=step)
            weights = weights - alpha * noisy(weights, records, cohort, i, {**where, "step": step})
        return global_weights - weights  # 18-19

    def _noisy_mean(
        self, weights: Tensor, records: Records, cohort: Cohort, i: int, name: dict[str, int]
    ) -> Tensor:
        """Lines 14 to 17 of a simulation, in floating point."""
        sigma, size = float(cohort.noise_stds[i]), int(cohort.batch_sizes[i])  # 11
        if self._merged_noise and name["step"] == self._plan.training.local_steps - 1:
            sigma = 0.0  # this noise comes with the mean
        mean = self._clipped_sum(weights, records) / size  # 16, by the public B
        return mean + sigma * standard_noise_(torch.empty_like(weights), self._streams, **name)

    def _private_mean(
        self, weights: Tensor, records: Records, cohort: Cohort, i: int, name: dict[str, int]
    ) -> Tensor:
        """Lines 14 to 17 on a lattice, record by record, with noise of a cryptographic stream."""
        multiplier, size = float(cohort.noise_multipliers[i]), int(cohort.batch_sizes[i])  # 11
        if multiplier == 0.0:  # a public client
            return self._clipped_sum(weights, records) / size
        lattice = Lattice(multiplier, self._plan.training.clip)
        total = torch.zeros(weights.numel(), dtype=torch.int64, device=weights.device)
        for x, y in zip(*records, strict=True):
            total += lattice.clipped_sum(self._gradients(weights, x[None], y[None]))  # 14-16
        key = self._streams.noise_key(**name)
        return lattice.release(total, key, scale=1 / size, dtype=weights.dtype)  # 17

    def _clipped_sum(self, weights: Tensor, records: Records) -> Tensor:
        if records[0].shape[0] == 0:
            return torch.zeros_like(weights)
        raw = self._gradients(weights, *records)  # 14
        factors, rows = clip_rows(raw, self._plan.training.clip)  # 15
        return factors @ rows

# SPDX-License-Identifier: Apache-2.0
"""What every scheme trains on, and the loop that calls the scheme's own step.

All schemes have the same clients, data, model, budgets and random streams. A scheme reads a
client's records only through the clipped sums and gradients below. Accuracy is measured on public
test records; a fixed quarter of them is set aside as the server's own data, for schemes that look
at a loss while they train, and is not in the accuracy.

Server step size, momentum and the average of iterates are those of the configuration and the same
for all schemes; they are post-processing and cost no privacy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpcohort.accounting import Contract
from dpcohort.aggregation import Cohort, Mean
from dpcohort.config import Config
from dpcohort.engine import (
    ClippedNetwork,
    CohortUpdates,
    EngineState,
    draw_batches,
    evaluator_on,
    per_example_gradients,
    train_rounds,
)
from dpcohort.errors import InputError
from dpcohort.metrics import main_metric
from dpcohort.models import split_features
from dpcohort.runs import Job, configured_job
from dpcohort_lab.checks import IntArray
from dpcohort_lab.schemes.scheme import Account, RoundUpdate, Scheme, SchemeResult

_SERVER_SHARE = 0.25
_COHORT_STREAM, _SERVER_STREAM = 41, 42
_UNCLIPPED = 1e30


class Simulation:
    """Clients with their records, a model, and public test data.

    Args:
        job: plan, model, data, partition and seed; only the plan's clients and settings are used,
            each scheme draws its own cohorts and noise.

    Attributes:
        population: who takes part, and what each was promised.
        training: rounds, cohort size, clip, as configured.
        sizes: number of records of each client, |M_k|.
        batch_sizes: the public expected batch of each client, B_k.
        rates: r_k = B_k / |M_k|.
        optimiser: step sizes of clients and server, momentum, average.
        streams: random numbers by name.
        dimension: trained parameters, D.
        total_size: records of all clients together.
        evaluate: a model's results on the public test records.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> simulation = Simulation.of(loads_config(commented_config("digits")))
        >>> len(simulation), simulation.dimension
        (20, 650)
    """

    def __init__(self, job: Job) -> None:
        if job.private:
            raise InputError.because(
                "schemes are compared in simulations only: --set run.simulate=SEED asks for one. "
                "Train the one you choose with: dpcohort train"
            )
        if not main_metric(job.task).is_share:
            raise InputError.because(
                f"schemes are compared by accuracy, and this task ({job.task.kind}) has none. "
                "Compare rules on it instead: dpcohort compare-rules"
            )
        plan, self._seed = job.plan, job.seed
        self.population, self.training = plan.population, plan.training
        self.sizes, self.batch_sizes = plan.population.sizes, plan.batch_sizes
        self.rates, self.optimiser, self.streams = plan.sampling_rates, job.optimiser, job.streams
        self._records = job.records()
        self._model = self._records.fit(job.trained)
        some = self._records.gather(self._records.indices[:2])
        loss = self._records.loss(job.loss)
        self._network = ClippedNetwork(self._model, loss, *some)
        self._gradients = per_example_gradients(
            self._model, loss, vectorised=self._network.path.kind != "loop"
        )
        self.dimension = self._network.layout.dimension
        self.total_size = int(self._records.indices.size)
        model, data = split_features(job.model, job.data, device="cpu")
        inputs, labels = data.normalised(data.test_inputs), data.test_labels
        order = np.random.default_rng(_SERVER_STREAM).permutation(len(labels))
        self._server, self.evaluate = (
            evaluator_on(model, inputs[part], labels[part].copy(), task=job.task)
            for part in np.split(order, [round(_SERVER_SHARE * len(labels))])
        )

    @classmethod
    def of(cls, config: Config, *, data: Any = None, shift: int = 0) -> Simulation:
        """The simulation of a configuration, on the CPU.

        Args:
            config: clients, training, data, model, optimiser.
            data: its data set, if it is loaded already.
            shift: added to the seed.

        Raises:
            InputError: its trust is distributed, or its unit is not the record.
        """
        if config.contract.is_distributed:
            raise InputError.because(
                "privacy.trust = 'distributed' is not for schemes: each has an observer of its "
                "own, see docs/research/schemes.md. Leave it out (--set privacy.trust=local does)."
            )
        if config.contract.unit.name != "record":
            raise InputError.because(
                f"privacy.unit = '{config.contract.unit}' is not for schemes: each has its own "
                "unit, see docs/research/schemes.md. Compare them on records (--set "
                "privacy.unit=record does)."
            )
        return cls(configured_job(config, data=data, shift=shift, device="cpu"))

    def __len__(self) -> int:
        return len(self.population)

    def step_size(self, round: int) -> float:
        """The configured local step size at the beginning of a round."""
        return self.optimiser.step_size(self.training, round=round, step=0)

    def initial(self) -> Tensor:
        """The model before training, as one vector [D]."""
        return self._network.layout.flatten(self._model)

    def cohorts(self) -> list[IntArray]:
        """Uniform cohorts of every round, without replacement, drawn before training."""
        rng = np.random.default_rng([self._seed, _COHORT_STREAM])
        size = min(self.training.cohort_size, len(self))
        return [
            np.sort(rng.choice(len(self), size=size, replace=False))
            for _ in range(self.training.rounds)
        ]

    def batch(
        self, client: int, *, rate: float, round: int, step: int = 0, batch_size: int = 0
    ) -> IntArray:
        """Positions of a Poisson batch at this rate, or of a fixed batch of ``batch_size``.

        ``client`` = len(self) draws from the records of all clients.
        """
        batches = draw_batches(
            self.streams,
            Contract.of("tight", "fixed" if batch_size else "poisson").sampler,
            size=self.total_size if client == len(self) else int(self.sizes[client]),
            rate=rate,
            batch_size=batch_size,
            round=round,
            client=client,
            draw=0,
        )
        return batches(step)

    @torch.no_grad()
    def clipped_sum(
        self, weights: Tensor, client: int, positions: IntArray, clip: float = _UNCLIPPED
    ) -> Tensor:
        """Sum of clipped gradients of a client's records. SENSITIVE until noise is added."""
        if positions.size == 0:
            return torch.zeros_like(weights)
        inputs, targets = self._records.gather(self._records.rows(client, positions))
        bound = weights.new_full((1,), clip)
        sums = self._network.clipped_sums(weights[None], inputs[None], targets[None], clip=bound)
        return sums[0]

    def raw_gradients(self, weights: Tensor, rows: IntArray) -> Tensor:
        """Gradients [n, D] of records, counted one client after the other. SENSITIVE."""
        return self._gradients(weights, *self._records.gather(self._records.indices[rows]))

    def noise(self, round: int, client: int, *, step: int = 0) -> Tensor:
        """Standard normal noise [D] of one release; ``client`` = len(self) is the aggregator."""
        out = torch.empty(self.dimension)
        return self.streams.normal_(out, round=round, client=client, step=step)

    def server_loss(self, weights: Tensor) -> float:
        """Loss on the server's own public records: it costs no privacy to look at it."""
        return self._server(weights).loss


def _all_at_once(round: int) -> Cohort:
    """Who takes part is the scheme's own affair; the loop sees one update."""
    one = np.ones(1)
    return Cohort(
        round=round,
        clients=np.zeros(1, dtype=np.int64),
        draws=np.zeros(1, dtype=np.int64),
        noise_multipliers=one,
        batch_sizes=np.ones(1, dtype=np.int64),
        noise_stds=one,
    )


def train_scheme(
    scheme: Scheme, simulation: Simulation, update: RoundUpdate, account: Account
) -> SchemeResult:
    """Train as many rounds as the simulation is configured for, or until ``update`` says stop.

    Args:
        scheme: what is trained.
        simulation: clients, data, model.
        update: what a round of the scheme releases; it counts before it adds noise.
        account: asked after the training, when it is known what was spent.
    """
    started = time.perf_counter()
    state = EngineState(simulation.initial())
    noise_stds: list[float] = []

    def updates(
        parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> list[CohortUpdates | None]:
        """The scheme's own step as that of a trainer: one update for all its clients."""
        found = update(cohorts[0].round, parameters[0])
        if found is None:
            return [None]
        noise_stds.append(found[1])
        return [CohortUpdates(cohorts[0], found[0][None])]

    trainer: Any = SimpleNamespace(updates=updates)
    rounds = train_rounds(
        trainer,
        [(Mean(), simulation.optimiser)],
        [state],
        rounds=simulation.training.rounds,
        choose=lambda t: [_all_at_once(t)],
    )
    any(record.lost for (record,) in rounds)  # to the end, or to the round that ends it
    rate = simulation.optimiser.server_learning_rate
    squares = [(std * rate) ** 2 for std in noise_stds]
    test = simulation.evaluate(state.parameters if state.average is None else state.average)
    spent = account()
    notes = tuple(spent.pop("notes", ()))
    return SchemeResult(
        card=scheme.card,
        mode=scheme.mode,
        accuracy=test.score,
        loss=test.loss,
        rounds=len(squares),
        noise_std=math.sqrt(sum(squares) / len(squares)) if squares else 0.0,
        receipts=tuple(scheme.receipts(simulation.population, **spent)),
        notes=notes,
        seconds=time.perf_counter() - started,
    )

# SPDX-License-Identifier: Apache-2.0
"""What every scheme trains on: the same clients, data, model, budgets and random streams.

A scheme reads a client's records only through the clipped sums and gradients below. Accuracy is
measured on public test records; a fixed quarter of them is set aside as the server's own data,
for schemes that look at a loss while they train, and is not in the accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import BoolArray, FloatArray, IntArray, number
from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.engine import ClippedNetwork, Evaluation, Evaluator, Optimiser, cross_entropy
from dpcohort.engine.clipping import PerExampleGradients
from dpcohort.engine.randomness import draw_positions
from dpcohort.errors import InputError
from dpcohort.models import split_features
from dpcohort.runs.configured import configured_job
from dpcohort.runs.job import Job
from dpcohort.training import Training

__all__ = ["Federation"]

_SERVER_SHARE = 0.25
_COHORT_STREAM, _SERVER_STREAM = 41, 42
_UNCLIPPED = 1e30


class Federation:
    """Clients with their records, a model, and public test data.

    Args:
        job: plan, model, data, partition and seed; only the plan's clients and settings are used,
            each scheme draws its own cohorts and noise.
        server_share: share of the test records that are the server's own public data.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> federation = Federation.of(loads_config(commented_config("digits")))
        >>> len(federation), federation.dimension
        (20, 650)
    """

    def __init__(self, job: Job, *, server_share: float = _SERVER_SHARE) -> None:
        number("server_share", server_share, above=0, below=1)
        if job.private:
            raise InputError.because(
                "schemes are compared in seeded simulations only, so private entropy cannot be "
                "used. Train the one you choose with: dpcohort train"
            )
        self._job = job
        self._records = job.records()
        model = self._records.fit(job.trained)
        some = self._records.gather(self._records.indices[:2])
        self._network = ClippedNetwork(model, cross_entropy, *some)
        self._gradients = PerExampleGradients(
            model, cross_entropy, vectorised=self._network.path.kind != "loop"
        )
        self._model = model
        self.streams = job.streams
        self._evaluator, self._server = self._test_sets(server_share)

    @classmethod
    def of(cls, config: Config, *, data: Any = None, shift: int = 0) -> Federation:
        """The federation of a configuration, on the CPU.

        Args:
            config: clients, training, data, model, optimiser.
            data: its data set, if it is loaded already.
            shift: added to the seed.
        """
        return cls(configured_job(config, data=data, shift=shift, device="cpu"))

    def __len__(self) -> int:
        return len(self.population)

    @property
    def population(self) -> Population:
        """Who takes part, and what each was promised."""
        return self._job.plan.population

    @property
    def training(self) -> Training:
        """Rounds, cohort size, clip, as configured."""
        return self._job.plan.training

    @property
    def sizes(self) -> IntArray:
        """Number of records of each client, |M_k|."""
        return self.population.sizes

    @property
    def batch_sizes(self) -> IntArray:
        """The public expected batch of each client, B_k."""
        return self._job.plan.batch_sizes

    @property
    def rates(self) -> FloatArray:
        """r_k = B_k / |M_k|."""
        return self._job.plan.sampling_rates

    @property
    def private(self) -> BoolArray:
        """Clients that promised something."""
        return ~self.population.public

    @property
    def seed(self) -> int:
        """Of batches and noise."""
        return self._job.seed

    @property
    def dimension(self) -> int:
        """Trained parameters, D."""
        return self._network.layout.dimension

    @property
    def optimiser(self) -> Optimiser:
        """Step sizes of clients and server, momentum, average."""
        return self._job.optimiser

    @property
    def server_rate(self) -> float:
        """Factor on the combined update."""
        return self._job.optimiser.server_learning_rate

    def step_size(self, round: int) -> float:
        """The configured local step size at the beginning of a round."""
        steps = self.training.local_steps
        return self._job.optimiser.local_step.at(round * steps, self.training.total_steps)

    def initial(self) -> Tensor:
        """The model before training, as one vector [D]."""
        return self._network.layout.flatten(self._model)

    def cohorts(self) -> list[IntArray]:
        """Uniform cohorts of every round, without replacement, drawn before training."""
        rng = np.random.default_rng([self.seed, _COHORT_STREAM])
        size = min(self.training.cohort_size, len(self))
        return [
            np.sort(rng.choice(len(self), size=size, replace=False))
            for _ in range(self.training.rounds)
        ]

    def batch(
        self, client: int, *, rate: float, round: int, step: int = 0, batch_size: int = 0
    ) -> IntArray:
        """Positions of a Poisson batch at this rate, or of a fixed batch of ``batch_size``."""
        return draw_positions(
            self.streams,
            "fixed" if batch_size else "poisson",
            size=int(self.sizes[client]),
            rate=rate,
            batch_size=batch_size,
            round=round,
            client=client,
            draw=0,
            step=step,
        )

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
        """Gradients [n, D] of records by their place in :attr:`rows`. SENSITIVE."""
        inputs, targets = self._records.gather(self.rows[rows])
        return self._gradients(weights, inputs, targets)

    @property
    def rows(self) -> IntArray:
        """All clients' records, one client after the other."""
        return self._records.indices

    @property
    def total_size(self) -> int:
        """Records of all clients together."""
        return int(self.rows.size)

    def noise(self, round: int, client: int, *, draw: int = 0, step: int = 0) -> Tensor:
        """Standard normal noise [D] of one release; ``client`` = len(self) is the aggregator."""
        out = torch.empty(self.dimension)
        return self.streams.normal_(out, round=round, client=client, draw=draw, step=step)

    def evaluate(self, weights: Tensor) -> Evaluation:
        """Results on the public test records."""
        return self._evaluator.evaluate(weights)

    def server_loss(self, weights: Tensor) -> float:
        """Loss on the server's own public records: it costs no privacy to look at it."""
        return self._server.evaluate(weights).loss

    def _test_sets(self, server_share: float) -> tuple[Evaluator, Evaluator]:
        model, data = split_features(self._job.model, self._job.data, device="cpu")
        inputs, labels = data.normalised(data.test_inputs), data.test_labels
        order = np.random.default_rng(_SERVER_STREAM).permutation(len(labels))
        cut = round(server_share * len(labels))
        if not 0 < cut < len(labels):
            raise InputError(
                "server_share",
                given=server_share,
                allowed=f"a share that leaves both parts of {len(labels)} test records some",
            )
        parts = (order[cut:], order[:cut])
        test, server = (Evaluator(model, inputs[part], labels[part].copy()) for part in parts)
        return test, server

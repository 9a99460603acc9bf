# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.config import commented_config, loads_config
from dpcohort_lab.schemes.simulation import Simulation

#: Six clients on the digits, two strict, a few short rounds.
SMALL = [
    "population.count=6",
    'population.epsilon={ distribution = "choices", values = [0.5, 4, 8], weights = [1, 1, 1] }',
    "training.rounds=5",
    "training.cohort_size=3",
    "optimiser.learning_rate=0.5",
]


def small_config(*changes: str):
    return loads_config(commented_config("digits")).with_overrides([*SMALL, *changes])


@pytest.fixture(scope="session")
def simulation() -> Simulation:
    return Simulation.of(small_config())


class Recorder:
    """Stands in for the server's optimiser: plain steps, and every update kept."""

    server_learning_rate = 1.0

    def __init__(self, optimiser) -> None:
        self.step_size = optimiser.step_size
        self.updates: list[torch.Tensor] = []

    def apply(self, states, updates, noise=()) -> None:
        for state, update in zip(states, updates, strict=True):
            self.updates.append(update.clone())
            state.parameters.sub_(update)
            state.next_round += 1


class Silent(Simulation):
    """A simulation whose gradients are all zero: what a scheme releases is its noise alone."""

    def __init__(self, job) -> None:
        super().__init__(job)
        self.optimiser = self.recorder = Recorder(self.optimiser)
        self._loss = 0.0

    def clipped_sum(self, weights, client, positions, clip=1.0):
        return torch.zeros_like(weights)

    def raw_gradients(self, weights, rows):
        return torch.zeros(len(rows), self.dimension)

    def server_loss(self, weights) -> float:
        self._loss -= 1
        return self._loss


@pytest.fixture
def silent() -> Silent:
    return Silent.of(small_config("training.rounds=24"))


def standardised_square(simulation: Silent, noise_stds) -> float:
    """Mean square of all that was released, in units of the noise it should have; about 1.

    Its own standard deviation is sqrt(2/n) with n the number of coordinates released.
    """
    updates = torch.stack(simulation.recorder.updates).double().numpy()
    return float(np.mean((updates / np.asarray(noise_stds)[:, None]) ** 2))


@pytest.fixture
def mean_square():
    return standardised_square

# SPDX-License-Identifier: Apache-2.0
"""Step sizes of clients and server, and what the server does with a round's update.

The clients' step sizes alpha_{t^g,t^l} are constant or those of the paper's two theorems. There
t = t^g T^l + t^l counts local steps from the start of training, and T = T^g T^l is their number.

The server has a step size, momentum and an average of iterates of its own. All of that is
post-processing of noisy updates and costs no privacy. Algorithm 1, line 8 multiplies by the step
size once more although the local steps already did; here the server's rate is 1 by default, which
makes the new model the mean of the clients' models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from dpcohort._validate import number
from dpcohort.engine.planned import TrainingPlan
from dpcohort.engine.state import EngineState
from dpcohort.training import LARGEST_STEP

__all__ = ["ConstantStep", "InverseRootStep", "InverseTimeStep", "Optimiser", "StepSize"]


class StepSize(Protocol):
    """Anything that says how long the step at time t is."""

    def at(self, time: int, total: int) -> float:
        """Step size at local step ``time`` (0, 1, ...) of ``total`` in the training."""
        ...


@dataclass(frozen=True)
class ConstantStep:
    """The same step size throughout.

    Example:
        >>> ConstantStep(0.1).at(5, 100)
        0.1
    """

    size: float

    def __post_init__(self) -> None:
        number("step size", self.size, above=0, at_most=LARGEST_STEP)

    def at(self, time: int, total: int) -> float:
        """The constant."""
        return self.size


@dataclass(frozen=True)
class InverseTimeStep:
    """beta / (gamma + t), for strongly convex losses (Theorem 1).

    Example:
        >>> InverseTimeStep(beta=2.0, gamma=3.0).at(1, 100)
        0.5
    """

    beta: float
    gamma: float = 1.0

    def __post_init__(self) -> None:
        number("beta", self.beta, above=0, at_most=LARGEST_STEP)
        number("gamma", self.gamma, at_least=1)

    def at(self, time: int, total: int) -> float:
        """The quotient beta / (gamma + t)."""
        return self.beta / (self.gamma + time)


@dataclass(frozen=True)
class InverseRootStep:
    """B_1 / (C sqrt(T)), for smooth losses (Theorem 2).

    Attributes:
        gradient_bound: B_1 of the theorem.
        clip: the clipping norm C.

    Example:
        >>> InverseRootStep(gradient_bound=1.0, clip=0.5).at(0, 400)
        0.1
    """

    gradient_bound: float
    clip: float

    def __post_init__(self) -> None:
        number("gradient_bound", self.gradient_bound, above=0)
        number("clip", self.clip, above=0)

    def at(self, time: int, total: int) -> float:
        """B_1 / (C sqrt(T)), the same at every time."""
        return self.gradient_bound / (self.clip * math.sqrt(total))


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """Step sizes of clients and server.

    Attributes:
        local_step: step size of the clients, alpha_{t^g,t^l}.
        server_learning_rate: factor on the combined update.
        server_momentum: m <- momentum m + update; the model moves by m. 0 is none.
        average_decay: a <- decay a + (1 - decay) w after each round, starting at the first round's
            model; None keeps no average.

    Example:
        >>> Optimiser(local_step=ConstantStep(0.2)).server_learning_rate
        1.0
    """

    local_step: StepSize = field(default_factory=lambda: ConstantStep(0.1))
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    average_decay: float | None = None

    def __post_init__(self) -> None:
        number("server_learning_rate", self.server_learning_rate, above=0, at_most=LARGEST_STEP)
        number("server_momentum", self.server_momentum, at_least=0, below=1)
        if self.average_decay is not None:
            number("average_decay", self.average_decay, at_least=0, below=1)

    def step_size(self, plan: TrainingPlan, *, round: int, step: int) -> float:
        """Step size alpha_{t^g,t^l} of one local step of a round of a plan."""
        training = plan.training
        time = round * training.local_steps + step
        return self.local_step.at(time, training.rounds * training.local_steps)

    @torch.no_grad()
    def apply(self, state: EngineState, update: Tensor) -> None:
        """Move the state's model by one round's combined update, and count the round."""
        if self.server_momentum > 0:
            if state.momentum is None:
                state.momentum = torch.zeros_like(state.parameters)
            state.momentum.mul_(self.server_momentum).add_(update)
            update = state.momentum
        state.parameters.sub_(update, alpha=self.server_learning_rate)
        if self.average_decay is not None:
            if state.average is None:
                state.average = state.parameters.clone()
            else:
                state.average.lerp_(state.parameters, 1 - self.average_decay)
        state.next_round += 1

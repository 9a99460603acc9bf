# SPDX-License-Identifier: Apache-2.0
"""What the server does with a round's update: its own step size, momentum, average of iterates.

All of it is post-processing of noisy updates and costs no privacy. Algorithm 1, line 8 multiplies
by the step size once more although the local steps already did; here the server has a rate of its
own, 1 by default, which makes the new model the mean of the clients' models.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpcohort._validate import number
from dpcohort.engine.planned import TrainingPlan
from dpcohort.engine.state import EngineState
from dpcohort.engine.step_sizes import ConstantStep, StepSize
from dpcohort.training import LARGEST_STEP

__all__ = ["Optimiser"]


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

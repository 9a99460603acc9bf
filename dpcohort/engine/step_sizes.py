# SPDX-License-Identifier: Apache-2.0
"""Local step sizes alpha_{t^g,t^l}: constant, and those of the paper's two theorems.

t = t^g T^l + t^l counts local steps from the start of training; T = T^g T^l is their number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dpcohort._validate import number
from dpcohort.training import LARGEST_STEP

__all__ = ["ConstantStep", "InverseRootStep", "InverseTimeStep", "StepSize"]


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

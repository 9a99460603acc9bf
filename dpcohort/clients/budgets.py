# SPDX-License-Identifier: Apache-2.0
"""Privacy budgets: what one is, and those of the paper's experiments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from dpcohort._validate import number
from dpcohort.clients.columns import EPSILON_ALLOWED, MAX_EPSILON, epsilon_step
from dpcohort.clients.distributions import Choices, Distribution, Fixed, GaussianMixture, Uniform
from dpcohort.errors import InputError

__all__ = [
    "PAPER_BUDGETS",
    "PUBLIC",
    "Budget",
    "Choices",
    "Distribution",
    "Fixed",
    "GaussianMixture",
    "Public",
    "Uniform",
]


class Public(Enum):
    """The kind of a client whose data needs no privacy; its one member is ``PUBLIC``."""

    PUBLIC = "public"

    def __repr__(self) -> str:
        return "PUBLIC"


PUBLIC: Final = Public.PUBLIC


@dataclass(frozen=True)
class Budget:
    """What a client promises each of its records over the whole training: (epsilon_k, delta_k).

    Attributes:
        epsilon: above 0 and at most 700.
        delta: above 0 and below 1; should be well below 1/size.

    Example:
        >>> Budget(1.0, 1e-5)
        Budget(epsilon=1.0, delta=1e-05)
        >>> Budget(float("inf"), 1e-5)
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: epsilon = inf is not allowed: it must be a finite number above 0
        and at most 700. For data that needs no privacy mark the client public; then it has no
        epsilon.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        try:
            number("epsilon", self.epsilon, above=0, at_most=MAX_EPSILON)
        except InputError:
            step = epsilon_step(self.epsilon) if isinstance(self.epsilon, int | float) else None
            raise InputError(
                "epsilon", given=self.epsilon, allowed=EPSILON_ALLOWED, next_step=step
            ) from None
        number("delta", self.delta, above=0, below=1)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))


#: The budgets of the paper's experiments. It writes N(0.5, 0.04) without saying whether 0.04 is a
#: variance or a standard deviation. Its other normal distributions give the variance, so that is
#: the plain name (standard deviation 0.2); ``-std`` is the other reading.
PAPER_BUDGETS: dict[str, Distribution] = {
    "uniform-0-1": Uniform(0, 1),
    "mixture-0.5-10": GaussianMixture([(0.3, 0.5, 0.2), (0.7, 10, 1)]),
    "mixture-2-8": GaussianMixture([(0.3, 2, 0.2), (0.7, 8, 1)]),
    "mixture-0.5-10-std": GaussianMixture([(0.3, 0.5, 0.04), (0.7, 10, 1)]),
    "mixture-2-8-std": GaussianMixture([(0.3, 2, 0.04), (0.7, 8, 1)]),
}

# SPDX-License-Identifier: Apache-2.0
"""One client of a population, and its budget."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from dpcohort._validate import number, whole_number
from dpcohort.clients._columns import EPSILON_ALLOWED, MAX_EPSILON, MAX_SIZE, epsilon_step
from dpcohort.clients._ids import ID_ALLOWED
from dpcohort.errors import InputError


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


@dataclass(frozen=True)
class Client:
    """One data holder.

    Attributes:
        id: its name, unique in a population.
        size: number of its records, |M_k|.
        budget: a ``Budget``, or ``PUBLIC``.
        batch_size: its own expected batch B_k, or None to use the one of the training settings.

    Example:
        >>> Client("north", 800, Budget(2.0, 1e-5)).is_public
        False
    """

    id: str
    size: int
    budget: Budget | Public
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip():
            raise InputError("id", given=self.id, allowed=ID_ALLOWED)
        size = whole_number("size", self.size, at_least=1, at_most=MAX_SIZE)
        object.__setattr__(self, "size", size)
        if not isinstance(self.budget, Budget | Public):
            raise InputError("budget", given=self.budget, allowed="a Budget, or PUBLIC")
        if self.batch_size is not None:
            batch_size = whole_number("batch_size", self.batch_size, at_least=1)
            object.__setattr__(self, "batch_size", batch_size)

    @property
    def is_public(self) -> bool:
        """Whether the data of this client needs no privacy."""
        return self.budget is PUBLIC

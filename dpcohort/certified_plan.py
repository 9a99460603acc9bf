# SPDX-License-Identifier: Apache-2.0
"""What every plan is: clients, training and contract under one hash, with promises to be kept.

A plan with fixed cohorts and one that chooses them on the way are two classes of it. Each says what
is in its hash beside the clients, and how its promises are certified.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting.contract import Contract
from dpcohort.clients import Population
from dpcohort.errors import VerificationError
from dpcohort.plain_text import one_line
from dpcohort.training import Training

__all__ = ["CertifiedPlan"]

_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class CertifiedPlan(ABC):
    """Clients with budgets, what they train, and under which contract; equal by hash.

    Attributes:
        population: the clients and their budgets.
        training: rounds, cohort size, clip and the rest.
        contract: sampler, neighbours and accountant.

    Example:
        >>> from dpcohort import make_plan
        >>> clients = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=2, cohort_size=3, batch_size=9), seed=0)
        >>> isinstance(plan, CertifiedPlan), len(plan.sha256)
        (True, 64)
    """

    population: Population
    training: Training
    contract: Contract

    @abstractmethod
    def plain_settings(self) -> dict[str, Any]:
        """All that is not a column, in plain values."""

    @abstractmethod
    def hashed_columns(self) -> tuple[NDArray[Any], ...]:
        """The columns that are hashed after those of the population; their order is part of it."""

    @abstractmethod
    def verify(self, method: str = "pld") -> None:
        """Certify every promise again; VerificationError if one is not kept."""

    @cached_property
    def batch_sizes(self) -> IntArray:
        """Expected batch B_k of each client, the public denominator of its mean gradient."""
        return self.population.batches(self.training)

    @cached_property
    def sampling_rates(self) -> FloatArray:
        """r_k = B_k / |M_k|."""
        return self.population.sampling_rates(self.training)

    @cached_property
    def sha256(self) -> str:
        """Hash of everything in the plan; two plans with the same hash train the same way."""
        people = self.population
        digest = hashlib.sha256(json.dumps(self.plain_settings(), sort_keys=True).encode())
        digest.update("\0".join(people.ids).encode())
        for column in (
            people.sizes,
            people.epsilon,
            people.delta,
            people.batch_sizes,
            people.public,
            *self.hashed_columns(),
        ):
            digest.update(column.dtype.str.encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    def verify_unless_made_here(self) -> None:
        """Certify a plan that was read or changed; one that was just made is certified.

        Raises:
            VerificationError: a client's noise does not keep its budget.
        """
        if not self.__dict__.get("_certified_here", False):
            self.verify(method="pld")

    def _mark_certified(self) -> None:
        """Only for what has just certified every client; ``replace`` makes a plan without it."""
        self.__dict__["_certified_here"] = True

    def _refuse_broken(self, held: BoolArray, certified: FloatArray, *, promised: str) -> None:
        """Name the clients whose promise is not kept.

        Args:
            held: which clients have a promise.
            certified: what each of these will have spent.
            promised: how the error calls the promise.
        """
        # Asked this way round, a certificate that is not a number breaks the promise.
        broken = np.flatnonzero(held)[~(certified <= self.population.epsilon[held])]
        if broken.size:
            named = ", ".join(one_line(self.population.ids[k]) for k in broken[:_MOST_NAMED])
            raise VerificationError(
                f"{broken.size} clients would spend more than {promised}: {named}"
                + (", ..." if broken.size > _MOST_NAMED else "")
                + ". Do not train with this plan; make it again."
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

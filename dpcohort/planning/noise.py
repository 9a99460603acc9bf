# SPDX-License-Identifier: Apache-2.0
"""Noise of a plan: every client's own (local), or shares of a cohort's (distributed DP).

Both give each client a noise multiplier that its certificate rests on, the multiplier of its own
noise alone, and how much it counts in the model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.distributed import (
    NoiseShares,
    adaptive_under_distributed_trust,
    common_lattice,
    refuse_undistributable,
    refuse_weightless,
    with_lattice,
)
from dpcohort.errors import InputError
from dpcohort.planning.participation import FixedCohorts, Participation, refuse_clients

if TYPE_CHECKING:
    from dpcohort.clients import Population
    from dpcohort.training import Training

#: What another order of the same operations may change.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise(ABC):
    """Noise multipliers of the clients, and whose noise they count on.

    Attributes:
        multipliers: z_k, std of the noise on the sum of clipped gradients, in units of C; 0 for
            public clients, NaN for clients that are never drawn, so that using one by mistake
            spoils the model instead of sending its gradient without noise.
        lifted: clients whose paper noise did not certify and was replaced by the tight noise.
    """

    #: Word for it in a plan's file, and of the contract's trust.
    kind: ClassVar[str]

    multipliers: FloatArray
    lifted: BoolArray

    def __post_init__(self) -> None:
        for column in (self.multipliers, self.lifted):
            column.setflags(write=False)

    @property
    @abstractmethod
    def honest(self) -> int:
        """h, members of a cohort whose noise the multipliers count on; 1 is oneself."""

    @abstractmethod
    def check(
        self,
        population: Population,
        training: Training,
        contract: Contract,
        participation: Participation,
    ) -> None:
        """Refuse noise that the contract does not mean, or that no lattice carries."""

    @abstractmethod
    def alone(self, population: Population, batch_sizes: IntArray, drawn: BoolArray) -> FloatArray:
        """Noise multiplier of each client's own noise: what is left if all others collude."""

    @abstractmethod
    def std_per_draw(self, batch_sizes: IntArray) -> FloatArray:
        """Std of the noise that each client adds to a round's mean gradient, in units of C."""

    @abstractmethod
    def model_weights(self, participation: Participation) -> FloatArray:
        """Effective weight of each client in the model, summing to 1."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """What a plan's file and hash have of it beside the multipliers."""

    @abstractmethod
    def columns(self) -> dict[str, NDArray[Any]]:
        """Arrays by name beside the multipliers; the hash of a plan covers them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalNoise(Noise):
    """Noise that each client adds for itself alone.

    Example:
        >>> LocalNoise(multipliers=np.ones(2), lifted=np.zeros(2, dtype=bool)).honest
        1
    """

    kind: ClassVar[str] = "local"

    @property
    def honest(self) -> int:
        """1: a client counts on nobody else."""
        return 1

    def check(
        self,
        population: Population,
        training: Training,
        contract: Contract,
        participation: Participation,
    ) -> None:
        """Refuse a contract that counts on the noise of others."""
        _check_kind(contract, distributed=False)

    def alone(self, population: Population, batch_sizes: IntArray, drawn: BoolArray) -> FloatArray:
        """All the noise there is."""
        return self.multipliers

    def std_per_draw(self, batch_sizes: IntArray) -> FloatArray:
        """z_k / B_k."""
        found: FloatArray = np.nan_to_num(self.multipliers, nan=0.0) / batch_sizes
        return found

    def model_weights(self, participation: Participation) -> FloatArray:
        """The probabilities of being drawn."""
        return participation.probabilities

    def plain(self) -> dict[str, Any]:
        """Nothing more."""
        return {}

    def columns(self) -> dict[str, NDArray[Any]]:
        """Nothing more."""
        return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class DistributedNoise(Noise):
    """Shares of a cohort's noise, which secure aggregation adds up (distributed DP).

    The multipliers are those that h honest shares give each client, against what its weight lets a
    record do.

    Attributes:
        pool: weights, shares, honest members and their lattice.
    """

    kind: ClassVar[str] = "distributed"

    pool: NoiseShares

    @property
    def honest(self) -> int:
        """h, members of a cohort whose noise the multipliers count on."""
        return self.pool.honest

    def check(
        self,
        population: Population,
        training: Training,
        contract: Contract,
        participation: Participation,
    ) -> None:
        """Refuse shares that do not carry the multipliers, or that no lattice of sums holds."""
        _check_kind(contract, distributed=True)
        if not isinstance(participation, FixedCohorts):
            raise adaptive_under_distributed_trust(participation.rule_name)
        schedule, pool = participation.schedule, self.pool
        refuse_undistributable(contract, training, schedule.draws)
        if pool.weights.size != len(population):
            raise InputError.because(
                f"the weights are for {pool.weights.size} clients but the population has "
                f"{len(population)}."
            )
        honest = contract.honest(training.cohort_size)
        if pool.honest != honest:
            raise InputError.because(
                f"the plan counts on {pool.honest} honest members, its contract on {honest}; "
                "make the plan again."
            )
        drawn, batch_sizes = participation.spending, population.batches(training)
        refuse_weightless(population, pool.weights, drawn)
        # What a record contributes stays 1e-5 below the clip, so rounding is paid for.
        enough = self.multipliers <= pool.multipliers(batch_sizes) * (1 + ROUNDING)
        refuse_clients(
            population,
            drawn & ~population.public & ~enough,
            "has more weight than its budget allows under the noise of the honest members",
        )
        fitting = with_lattice(pool, population, training, contract)
        if (pool.exponent, pool.modulus_bits) != (fitting.exponent, fitting.modulus_bits):
            raise InputError.because(
                f"the lattice 2^{pool.exponent}, modulo 2^{pool.modulus_bits}, is not that of "
                f"the weights (2^{fitting.exponent}, modulo 2^{fitting.modulus_bits}); make the "
                "plan again."
            )
        cohorts = schedule.cohorts
        common_lattice(  # what an engine adds up on, of any h
            cohorts,
            weights=pool.weights[cohorts],
            shares=pool.shares[cohorts],
            batch_sizes=batch_sizes[cohorts],
            population=population,
            sampler=contract.sampler,
        )
        ordered = np.sort(cohorts, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            raise InputError.because("a client is twice in a cohort whose noise is distributed.")

    def alone(self, population: Population, batch_sizes: IntArray, drawn: BoolArray) -> FloatArray:
        """Noise multiplier of each own share; of public clients too, as it protects the others."""
        lent = np.where(drawn, self.pool.alone_multipliers(batch_sizes), np.nan)
        own = self.multipliers / math.sqrt(self.honest)
        return np.where(population.public, lent, own)

    def std_per_draw(self, batch_sizes: IntArray) -> FloatArray:
        """The share of each."""
        return self.pool.shares

    def model_weights(self, participation: Participation) -> FloatArray:
        """Share of all draws, each with its weight."""
        weighted: FloatArray = participation.counts * self.pool.weights
        found: FloatArray = weighted / weighted.sum()
        return found

    def plain(self) -> dict[str, Any]:
        """Honest members and lattice."""
        return {
            "honest": self.pool.honest,
            "exponent": self.pool.exponent,
            "modulus_bits": self.pool.modulus_bits,
        }

    def columns(self) -> dict[str, NDArray[Any]]:
        """Weights and shares."""
        return {"weights": self.pool.weights, "shares": self.pool.shares}


def _check_kind(contract: Contract, *, distributed: bool) -> None:
    if contract.is_distributed != distributed:
        raise InputError.because(
            "trust is distributed in the contract or in the plan, but not in both; make the plan "
            "again."
        )


def noise_from_dict(
    values: Mapping[str, Any], multipliers: FloatArray, lifted: BoolArray
) -> LocalNoise | DistributedNoise:
    """Noise from ``plain`` and ``columns`` of a file.

    Args:
        values: of the file.
        multipliers: of all clients.
        lifted: of all clients.
    """
    if values["kind"] == LocalNoise.kind:
        return LocalNoise(multipliers=multipliers, lifted=lifted)
    for name in ("honest", "exponent", "modulus_bits"):
        if type(values[name]) is not int:  # 3.0 would have another hash than 3
            raise InputError(f"noise.{name}", given=values[name], allowed="a whole number")
    pool = NoiseShares(
        weights=np.array(values["weights"], dtype=np.float64),
        shares=np.broadcast_to(
            np.array(values["shares"], dtype=np.float64), multipliers.shape
        ).copy(),
        honest=values["honest"],
        exponent=values["exponent"],
        modulus_bits=values["modulus_bits"],
    )
    return DistributedNoise(multipliers=multipliers, lifted=lifted, pool=pool)

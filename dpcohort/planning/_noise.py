# SPDX-License-Identifier: Apache-2.0
"""Noise of a plan: every client's own (local), or shares of a cohort's (distributed DP).

Both give each client a noise multiplier that its certificate rests on, the multiplier of its own
noise alone, and how much it counts in the model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting import Contract
from dpcohort.accounting._distributed import (
    NOT_PROTECTED,
    NoiseShares,
    agreeing_members,
    common_lattice,
    refuse_undistributable,
    refuse_weightless,
    sum_only,
    trust_in_words,
    trust_terms,
    with_lattice,
)
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.plain_text import counted
from dpcohort.planning._participation import Participation, refuse_clients
from dpcohort.training import Training

#: What another order of the same operations may change.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise(ABC):
    """Noise multipliers of the clients, and on whose noise they rely.

    Attributes:
        multipliers: z_k, std of the noise on the sum of clipped gradients, in units of C; 0 for
            public clients, NaN for clients that are never drawn, so that using one by mistake
            spoils the model instead of sending its gradient without noise.
        lifted: clients whose paper noise did not certify and was replaced by the tight noise.
    """

    #: Word for it in a plan's file, and of the contract's trust.
    kind: ClassVar[str]
    #: Whether the server sees sums only, and noise is added once to the sum of a cohort.
    only_sums: ClassVar[bool]
    #: What a line about a round calls the noise of its draws.
    word: ClassVar[str]
    #: Why the page of a report cannot solve the selection again; empty where it can.
    no_explorer: ClassVar[str] = ""

    multipliers: FloatArray
    lifted: BoolArray

    if TYPE_CHECKING:  # a field or a property

        @property
        def pool(self) -> NoiseShares:
            """Weights, shares and lattice of distributed noise.

            Raises:
                InputError: noise is local.
            """

    def __post_init__(self) -> None:
        for column in (self.multipliers, self.lifted):
            column.setflags(write=False)

    @property
    @abstractmethod
    def honest(self) -> int:
        """h, members of a cohort whose noise the multipliers rely on; 1 is oneself."""

    @abstractmethod
    def check(
        self,
        population: Population,
        training: Training,
        contract: Contract,
        participation: Participation,
    ) -> None:
        """Refuse noise that the contract does not mean, or that no lattice carries."""
        return

    @abstractmethod
    def alone(self, population: Population, batch_sizes: IntArray, drawn: BoolArray) -> FloatArray:
        """Noise multiplier of each client's own noise: what is left if all others collude."""

    @abstractmethod
    def std_per_draw(self, batch_sizes: IntArray) -> FloatArray:
        """Std of the noise that each client adds to a round's mean gradient, in units of C."""

    @property
    def title(self) -> tuple[str, ...]:
        """What the title of a run says of it."""
        return ()

    @property
    def is_simple(self) -> bool:
        """Whether a mod of Flower can keep a plan with it."""
        return not self.only_sums

    @property
    def share(self) -> float:
        """Largest std of the noise that a member adds to the sum of a cohort, in units of C."""
        return 0.0

    @property
    @abstractmethod
    def weights(self) -> FloatArray:
        """g_k, factor on each client's mean gradient when it is drawn."""

    @abstractmethod
    def model_weights(self, participation: Participation) -> FloatArray:
        """Effective weight of each client in the model, summing to 1."""

    @abstractmethod
    def draw_terms(
        self, clients: IntArray, batch_sizes: IntArray
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """Weights and shares of noise of a round's draws; None where each draw has its own noise.

        Args:
            clients: positions of the members.
            batch_sizes: B_k of each of them.

        Raises:
            InputError: the cohort does not hold the noise that was accounted for.
        """

    def refuse_single_updates(self, what: str, instead: str) -> None:
        """Refuse what looks at single updates, where the server sees sums only.

        Args:
            what: what looks at them, and how.
            instead: what to use.
        """
        return

    def check_local_steps(self, local_steps: int) -> None:
        """Refuse local steps between which the model would lack noise."""
        return

    def summands(self, cohort_size: int) -> int:
        """How many draws of noise one release adds up."""
        return 1

    def span(self, low: float, high: float) -> str:
        """Least and largest noise of the draws of a round."""
        return f"{low:.3g} to {high:.3g}"

    def added(self, clients: Sequence[int], stds: Sequence[float], clip: float) -> list[float]:
        """Std of the noise that each draw of a round really added.

        Args:
            clients: position of each.
            stds: of the noise that protects each.
            clip: C.
        """
        return list(stds)

    def levels(self, clients: Sequence[int], stds: Sequence[float]) -> tuple[str, list[float]]:
        """In what the draws of a round differ, and how much: their noise.

        Args:
            clients: position of each.
            stds: of the noise of each.
        """
        return "noise", list(stds)

    def trust(
        self, k: int, contract: Contract, cohort_size: int, planned: float, spent: float | None
    ) -> dict[str, Any] | None:
        """What a receipt says about the others on whom a client relies.

        Args:
            k: position of the client.
            contract: who may collude or drop out.
            cohort_size: K.
            planned: epsilon of the plan if all others collude.
            spent: the same of what was spent.
        """
        return None

    def statement(self, contract: Contract, cohort_size: int) -> str:
        """What a page says about trust and what stays visible; empty where nobody is trusted."""
        return ""

    def facts(self, contract: Contract, cohort_size: int) -> dict[str, str]:
        """Rows about trust in a table of settings."""
        return {}

    def cards(self, cohort_size: int, alone: float) -> list[tuple[str, str, str]]:
        """Title, number and words of what a page shows about trust.

        Args:
            cohort_size: K.
            alone: the largest epsilon of a client if all others collude.
        """
        return []

    def assumptions(self, contract: Contract, cohort_size: int) -> list[str]:
        """Sentences about the clients that must be honest."""
        return []

    def notes(self, contract: Contract, cohort_size: int) -> list[str]:
        """Why it could not be deployed as masked sums."""
        return []

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
    only_sums: ClassVar[bool] = False
    word: ClassVar[str] = "noise"

    @property
    def honest(self) -> int:
        """1: a client relies on nobody else."""
        return 1

    @property
    def pool(self) -> NoiseShares:
        """There is none.

        Raises:
            InputError: always.
        """
        raise InputError.because(
            "noise is not distributed in this plan: it needs no members' keys."
        )

    @property
    def weights(self) -> FloatArray:
        """1 each."""
        return np.ones(self.multipliers.size)

    def check(
        self,
        population: Population,
        training: Training,
        contract: Contract,
        participation: Participation,
    ) -> None:
        """Refuse a contract that relies on the noise of others."""
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

    def draw_terms(
        self, clients: IntArray, batch_sizes: IntArray
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """None: each draw has its own noise."""
        return None, None

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
    only_sums: ClassVar[bool] = True
    word: ClassVar[str] = "shares of noise"
    no_explorer: ClassVar[str] = (
        "The explorer is for clients that each add all of their own noise; here it is distributed. "
        "Use dpcohort what-if."
    )

    pool: NoiseShares

    @property
    def honest(self) -> int:
        """h, members of a cohort whose noise the multipliers rely on."""
        return self.pool.honest

    @property
    def share(self) -> float:
        """Largest std of the noise that a member adds to the sum of a cohort, in units of C."""
        return self.pool.share

    @property
    def title(self) -> tuple[str, ...]:
        """What the title of a run says of it."""
        return (f"distributed ({self.honest} honest)",)

    @property
    def weights(self) -> FloatArray:
        """g_k, factor on each client's mean gradient when it is drawn."""
        return self.pool.weights

    def check(
        self,
        population: Population,
        training: Training,
        contract: Contract,
        participation: Participation,
    ) -> None:
        """Refuse shares that do not carry the multipliers, or that no lattice of sums holds."""
        _check_kind(contract, distributed=True)
        schedule, pool = participation.planned_under_sums().schedule, self.pool
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
        shares: FloatArray = weighted / weighted.sum()
        return shares

    def draw_terms(
        self, clients: IntArray, batch_sizes: IntArray
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """Weights and shares of a cohort that holds the noise that was accounted for."""
        weights, shares = self.pool.weights[clients], self.pool.shares[clients]
        needed = np.asarray(self.multipliers)[clients] * weights / batch_sizes
        _check_cohort(clients, needed, shares, self.honest)
        return weights, shares

    def refuse_single_updates(self, what: str, instead: str) -> None:
        """Refuse what looks at single updates."""
        raise sum_only(what, instead)

    def check_local_steps(self, local_steps: int) -> None:
        """Refuse more than one."""
        if local_steps > 1:
            raise InputError(
                "local_steps",
                given=local_steps,
                allowed="1 with distributed trust: between two steps there is no noise of others",
            )

    def summands(self, cohort_size: int) -> int:
        """Every member's."""
        return cohort_size

    def span(self, low: float, high: float) -> str:
        """The share of all, or the least and the largest where they differ."""
        return super().span(low, high) if low < high else f"{low:.3g}"

    def added(self, clients: Sequence[int], stds: Sequence[float], clip: float) -> list[float]:
        """The share of each."""
        return [float(share) for share in self.pool.shares[list(clients)] * clip]

    def levels(self, clients: Sequence[int], stds: Sequence[float]) -> tuple[str, list[float]]:
        """Their weights: all add the same noise."""
        return "weight", [float(self.pool.weights[client]) for client in clients]

    def trust(
        self, k: int, contract: Contract, cohort_size: int, planned: float, spent: float | None
    ) -> dict[str, Any] | None:
        """Honest members, weight and share, and what is spent if all others collude."""
        return {
            **trust_terms(contract, cohort_size),
            "weight": float(self.pool.weights[k]),
            "share": float(self.pool.shares[k]),
            "planned_alone_epsilon": None if math.isnan(planned) else planned,
            "alone_epsilon": spent,
        }

    def statement(self, contract: Contract, cohort_size: int) -> str:
        """Who must be honest, and what stays visible."""
        trust = trust_in_words(trust_terms(contract, cohort_size))
        return f"Noise is {trust}. {NOT_PROTECTED[:1].upper()}{NOT_PROTECTED[1:]}."

    def facts(self, contract: Contract, cohort_size: int) -> dict[str, str]:
        """Rows about trust in a table of settings."""
        pool = self.pool
        return {
            "trust": trust_in_words(trust_terms(contract, cohort_size)),
            "open": NOT_PROTECTED,
            "share of noise": f"{pool.share:.6g} of the clip",
            "lattice": f"noise of 2^{pool.exponent}, modulo 2^{pool.modulus_bits}",
        }

    def cards(self, cohort_size: int, alone: float) -> list[tuple[str, str, str]]:
        """How many members must be honest, and what if none is."""
        honest = f"{self.honest} of {cohort_size}"
        return [
            ("Honest members counted on", honest, "in every cohort; noise is distributed"),
            ("If all others collude", f"ε {alone:.3g}", "spent by any client at most"),
        ]

    def assumptions(self, contract: Contract, cohort_size: int) -> list[str]:
        """How many members must be honest."""
        return [
            f"noise is distributed: each promise counts on {self.honest} honest clients of "
            f"{cohort_size}, and {contract.dropouts or 'none'} may drop out"
        ]

    def notes(self, contract: Contract, cohort_size: int) -> list[str]:
        """That no masked sum is agreed on where so many members may collude or drop out."""
        trust = trust_terms(contract, cohort_size)
        most = cohort_size - agreeing_members(cohort_size, trust["colluding"])
        if trust["honest"] < 2:
            return [
                "note: for simulations only: each client counts on its own noise alone, so that "
                "masked sums buy nothing. To deploy it set privacy.trust=local."
            ]
        if trust["dropouts"] > most:
            return [
                f"note: for simulations only: where {trust['colluding']} of {cohort_size} may "
                f"collude, masked sums stand at most {counted(most, 'drop-out')}. To deploy it "
                "lower privacy.dropouts or privacy.colluding, or raise training.cohort_size."
            ]
        return []

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


def _check_cohort(clients: IntArray, needed: FloatArray, shares: FloatArray, honest: int) -> None:
    """Refuse a cohort that does not hold the noise that was accounted for.

    Args:
        clients: its members.
        needed: z_k g_k / B_k, the noise on the sum that protects each, in units of C.
        shares: what each adds, in units of C.
        honest: h, how many of the shares are sure to be there, a member's own among them.
    """
    if np.unique(clients).size < clients.size:
        raise InputError.because("a client is twice in a cohort whose noise is distributed.")
    squares = np.asarray(shares, dtype=np.float64) ** 2
    least = np.sort(squares)[:honest]
    sure = np.sqrt(least[:-1].sum() + np.maximum(squares, least[-1]))
    short = ~(needed <= sure * (1 + ROUNDING))
    if least.size < honest or short.any():
        raise InputError.because(
            f"the noise of {honest} members of the cohort does not protect client "
            f"{int(clients[int(np.argmax(short))])} as was accounted for; make the plan again."
        )


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

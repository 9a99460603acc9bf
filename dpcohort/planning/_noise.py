# SPDX-License-Identifier: Apache-2.0
"""Noise of a plan: every client's own (local), or shares of a cohort's (distributed DP).

Both give each client a noise multiplier that its certificate rests on, the multiplier of its own
noise alone, and how much it counts in the model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpcohort import selection as solvers  # that of distributed noise is loaded on use
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
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.plain_text import counted
from dpcohort.planning._certificate import Certificate, DistributedCertificate
from dpcohort.planning._participation import Participation, refuse_clients
from dpcohort.schedule import once_in_a_cohort
from dpcohort.selection import Selection, SelectionProblem
from dpcohort.training import Training

if TYPE_CHECKING:
    from dpcohort.plan import Plan

#: What another order of the same operations may change.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class PlannedDraws:
    """What a plan has of its cohorts before their noise is shared out.

    Attributes:
        population: the clients.
        training: rounds and cohorts.
        contract: whose trust it is.
        problem: what the rule looked at.
        chosen: effective weight of each client in the model.
        probabilities: how often each was to be drawn.
        drawn: how often each is.
        certified: epsilon of each client under the noise that keeps its budget.
    """

    population: Population
    training: Training
    contract: Contract
    problem: SelectionProblem
    chosen: Selection
    probabilities: FloatArray
    drawn: IntArray
    certified: FloatArray


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

    @classmethod
    @abstractmethod
    def chances(cls, problem: SelectionProblem, chosen: Selection, cohort_size: int) -> FloatArray:
        """How often each client is to be drawn, a draw, for a selection to hold in the model.

        Args:
            problem: what the rule looked at.
            chosen: what it gave back.
            cohort_size: K.
        """

    @classmethod
    @abstractmethod
    def planned(
        cls, multipliers: FloatArray, lifted: BoolArray, draft: PlannedDraws
    ) -> tuple[Noise, Certificate]:
        """Noise for cohorts that are drawn, and a certificate that promises nothing beside it.

        Args:
            multipliers: that keep each budget; NaN if never drawn.
            lifted: clients whose paper noise was replaced.
            draft: what is planned so far.
        """

    @abstractmethod
    def certified(self, plan: Plan) -> Plan:
        """A plan with the noise that is really given, and what it spends without others."""

    @abstractmethod
    def if_alone(self, plan: Plan) -> Plan:
        """The plan as each client must count it if all others collude."""

    @abstractmethod
    def draw_probabilities(self, plan: Plan) -> FloatArray:
        """Probability that a draw of a plan with fixed cohorts is of each client."""

    def check(
        self,
        population: Population,
        training: Training,
        contract: Contract,
        participation: Participation,
    ) -> None:
        """Refuse noise that the contract does not mean, or that no lattice carries."""
        if contract.trust != self.kind:
            raise InputError.because(
                "trust is distributed in the contract or in the plan, but not in both; make the "
                "plan again."
            )

    @property
    def unshared(self) -> FloatArray:
        """Noise multipliers that protect each client without others, in any training.

        Raises:
            InputError: each client's own noise is a share only.
        """
        return self.multipliers

    def summary(self, cohort_size: int, alone: FloatArray) -> dict[str, str]:
        """Short fields about trust for the summary of a plan.

        Args:
            cohort_size: K.
            alone: epsilon of clients with a budget if all others collude.
        """
        return {}

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

    @classmethod
    def chances(cls, problem: SelectionProblem, chosen: Selection, cohort_size: int) -> FloatArray:
        """The probabilities that were chosen."""
        return chosen.probabilities

    @classmethod
    def planned(
        cls, multipliers: FloatArray, lifted: BoolArray, draft: PlannedDraws
    ) -> tuple[Noise, Certificate]:
        """Each client's own noise, and its epsilon."""
        return cls(multipliers=multipliers, lifted=lifted), Certificate(epsilon=draft.certified)

    def certified(self, plan: Plan) -> Plan:
        """The plan: nobody is relied on."""
        return plan

    def if_alone(self, plan: Plan) -> Plan:
        """The plan: nobody is relied on."""
        return plan

    def draw_probabilities(self, plan: Plan) -> FloatArray:
        """The probabilities that were chosen."""
        return plan.probabilities

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

    @classmethod
    def chances(cls, problem: SelectionProblem, chosen: Selection, cohort_size: int) -> FloatArray:
        """Chances for which the weights in the model are those chosen; nobody twice in a cohort."""
        costs = (problem.noise_costs, problem.linear_costs)
        wanted = problem.pool.probabilities(chosen.probabilities, *costs)
        return once_in_a_cohort(wanted, cohort_size)

    @classmethod
    def planned(
        cls, multipliers: FloatArray, lifted: BoolArray, draft: PlannedDraws
    ) -> tuple[Noise, Certificate]:
        """Weights and shares for these draws; what is spent without others is not known yet."""
        noise = cls(multipliers=multipliers, lifted=lifted, pool=_shares(draft, multipliers))
        worst = np.where(draft.population.public, np.nan, np.inf)
        return noise, DistributedCertificate(epsilon=draft.certified, worst_epsilon=worst)

    def certified(self, plan: Plan) -> Plan:
        """A plan with the noise that its shares really give, certified with and without others.

        Raises:
            BudgetExceededError: it does not keep a promise.
        """
        certified, counts = plan.certificate.epsilon, plan.counts
        held = plan.drawn & ~plan.population.public
        if self.honest > 1:
            carried = self.pool.multipliers(plan.batch_sizes)
            multipliers = np.where(held, carried, self.multipliers)
            plan = replace(plan, noise=replace(self, multipliers=multipliers))
            found = plan.spent_epsilon(counts, method="pld")
            # More noise than was certified spends no more.
            enough = held & (carried >= np.nan_to_num(self.multipliers))
            certified = np.where(enough, np.fmin(found, certified), found)
            broken = np.flatnonzero(held & ~(certified <= plan.population.epsilon))
            if broken.size:
                raise BudgetExceededError(
                    f"the noise of {plan.population.ids[int(broken[0])]!r} could not be certified "
                    "under distributed trust; set trust = 'local'."
                )
        alone = plan.if_alone.spent_epsilon(counts, method="pld")
        # A bound on less noise bounds what more noise spends.
        alone = np.maximum(alone, certified)
        certificate = DistributedCertificate(epsilon=certified, worst_epsilon=alone)
        return replace(plan, certificate=certificate)

    def if_alone(self, plan: Plan) -> Plan:
        """A local plan with each client's own share of the noise."""
        own = np.where(plan.population.public, 0.0, plan.alone_multipliers)
        return replace(
            plan,
            contract=replace(plan.contract, trust="local", colluding=0, dropouts=0),
            noise=LocalNoise(multipliers=own, lifted=self.lifted),
            certificate=Certificate(epsilon=plan.certificate.alone_epsilon),
            past=plan.past.if_alone(),
        )

    def draw_probabilities(self, plan: Plan) -> FloatArray:
        """Those that follow from the weights in the model."""
        return self.chances(plan.problem, plan.selection, plan.training.cohort_size)

    @property
    def unshared(self) -> FloatArray:
        """There is none.

        Raises:
            InputError: always.
        """
        raise InputError.because(
            "with distributed trust a client adds a share of the noise only, which protects "
            "nobody outside of a masked sum. Plan with trust = 'local'."
        )

    def summary(self, cohort_size: int, alone: FloatArray) -> dict[str, str]:
        """Honest members, and the largest epsilon if all others collude."""
        return {
            "trust": f"distributed, {self.honest} of {cohort_size} honest",
            "alone": f"epsilon {alone.max():.3g} if all collude",
        }

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
        super().check(population, training, contract, participation)
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


def _shares(draft: PlannedDraws, noise: FloatArray) -> NoiseShares:
    """Weights and shares of noise for the draws and multipliers there are.

    Args:
        draft: clients, draws and what they were selected for.
        noise: multipliers that keep each budget; NaN if never drawn.
    """
    population, training, contract = draft.population, draft.training, draft.contract
    chosen, counts, draws = draft.chosen, draft.drawn, training.total_draws
    honest = contract.honest(training.cohort_size)
    needed = np.nan_to_num(noise) / population.batches(training)
    if not (needed > 0).any():
        raise InputError.because(
            "no client that is drawn has a budget, so there is no noise to pool. Leave trust out, "
            "or give clients budgets."
        )
    if honest == 1:  # each draw brings its own noise, so draws and weights are those of local trust
        weights = np.zeros(len(population))
        here = counts > 0
        wanted = chosen.probabilities[here] / draft.probabilities[here]
        least = solvers.SMALLEST_WEIGHT  # cohorts may need who is not wanted
        weights[here] = np.maximum(wanted, least)
        weights /= float(counts @ weights) / draws
        shares = weights * needed
    else:
        # A selection that is optimal keeps to its objective.
        best = math.isfinite(chosen.objective) and chosen.gap <= 1e-6 * chosen.objective
        weights, level = solvers.distributed_weights(
            chosen.probabilities,
            draft.probabilities * draws,
            counts,
            needed,
            unbiased=draft.problem.unbiased if best else None,
            noise_weight=chosen.eta * training.dimension / (honest * draws),
        )
        shares = np.full(len(population), level / math.sqrt(honest))
    distributed = NoiseShares(weights=weights, shares=shares, honest=honest)
    return with_lattice(distributed, population, training, contract)


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


_KINDS: dict[str, type[Noise]] = {kind.kind: kind for kind in (LocalNoise, DistributedNoise)}


def noise_of(contract: Contract) -> type[Noise]:
    """The kind of noise that a contract's trust means."""
    return _KINDS[contract.trust]


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

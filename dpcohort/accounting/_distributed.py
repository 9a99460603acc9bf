# SPDX-License-Identifier: Apache-2.0
"""Shares of distributed noise, and the integers they are added up as (distributed-noise.md).

In a round with cohort S the server learns only the sum over k in S of
``weight_k * mean_k + share_k * C * normal``: mean_k is the sum of client k's clipped gradients over
B_k, and the sum over K is the step of the round. A record of k moves it by at most weight_k C /
B_k, and at least h shares, its own among them, are in it and unknown to the server. All shares are
equal, so their noise has standard deviation sqrt(h) share C.

Where h = 1 a client counts on nobody but itself. Its share is then all of its own noise, z_k
weight_k / B_k: the local model, with weights.

**The lattice.** Members add integers. In units of share C / 2^e a share of noise is
``round(2^e Z)``, and a record of k contributes at most 2^e / m_k with m_k = share B_k / weight_k,
the noise multiplier of the own share alone. That is at least 2^22 for everybody: e is chosen for
the largest m_k. Sums are taken modulo 2^b, with b so large that no sum of a cohort ever wraps
around.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray, whole_number
from dpcohort.accounting._contract import Contract
from dpcohort.accounting._sampler import Sampler
from dpcohort.errors import InputError
from dpcohort.plain_text import counted, one_line

if TYPE_CHECKING:
    from dpcohort.clients import Population
    from dpcohort.training import Training

#: A record's largest contribution is at least two to this, as on the lattice of a single client.
LEAST_BITS = 22
#: Largest e: the noise of a lattice is drawn exactly up to here.
LARGEST_EXPONENT = 40
#: Sums of more bits would not fit the integers they are added up in.
MOST_MODULUS_BITS = 62
#: Noise of a whole cohort against what a record can do, for which sums fit 64 bits.
_SMALLEST_NOISE, _LARGEST_NOISE = 2.0**-20, 2.0 ** (LARGEST_EXPONENT - LEAST_BITS)
#: Where the law of a drawn share ends, in standard deviations, and half a unit of rounding.
_FARTHEST = 16.5
#: Too small a weight, in the words of a refusal.
_TOO_SOFT = ("small", "beside the noise of its cohort")


#: What distributed noise does not hide.
NOT_PROTECTED = (
    "not hidden: the sum itself, who takes part in which round, and weights, which tell budgets"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseShares:
    """What a plan for distributed noise fixes beside the noise multipliers.

    Attributes:
        weights: g_k, factor on a client's mean gradient; 0 for clients that are never drawn. The
            mean over all draws is 1.
        shares: standard deviation of the noise that each client adds when it is drawn, in units of
            C; the same for all, unless h is 1.
        honest: h, members whose shares surely are in the sum and unknown to the server.
        exponent: e; a share of noise has standard deviation 2^e on the lattice. 0 where h is 1:
            nothing needs to be masked, so there is no common lattice.
        modulus_bits: b; sums are taken modulo 2^b. 0 where h is 1.

    Example:
        >>> shares = NoiseShares(weights=np.array([0.5, 1.5]), shares=np.array([0.1, 0.1]),
        ...                      honest=2, exponent=26, modulus_bits=42)
        >>> shares.multipliers(np.array([60, 60])).round(2)
        array([16.97,  5.66])
    """

    weights: FloatArray
    shares: FloatArray
    honest: int
    exponent: int = 0
    modulus_bits: int = 0

    def __post_init__(self) -> None:
        whole_number("distributed.honest", self.honest, at_least=1)
        whole_number("distributed.exponent", self.exponent, at_least=0, at_most=LARGEST_EXPONENT)
        most = MOST_MODULUS_BITS
        whole_number("distributed.modulus_bits", self.modulus_bits, at_least=0, at_most=most)
        if self.shares.shape != (self.weights.size,):
            raise InputError.because("weights and shares are of other clients each.")
        for name, column in (("weights", self.weights), ("shares", self.shares)):
            if not (np.isfinite(column) & (column >= 0)).all():
                worst = column[~(np.isfinite(column) & (column >= 0))][0]
                allowed = "finite numbers of at least 0"
                raise InputError(f"distributed.{name}", given=float(worst), allowed=allowed)
        if self.honest > 1 and not (self.shares == self.share).all():
            raise InputError.because(
                "shares of noise differ; where members count on each other all are equal."
            )
        for column in (self.weights, self.shares):
            column.setflags(write=False)

    @property
    def share(self) -> float:
        """The share of each member, in units of C; where h is 1 the largest of them."""
        return float(self.shares.max())

    def multipliers(self, batch_sizes: IntArray) -> FloatArray:
        """Noise multiplier that h honest shares give each client; infinite without weight.

        Args:
            batch_sizes: B_k.
        """
        return self.alone_multipliers(batch_sizes) * math.sqrt(self.honest)

    def alone_multipliers(self, batch_sizes: IntArray) -> FloatArray:
        """m_k: noise multiplier of each client's own share alone; infinite without weight."""
        found = np.full(self.weights.size, math.inf)
        here = self.weights > 0
        with np.errstate(over="ignore"):
            found[here] = self.shares[here] * batch_sizes[here] / self.weights[here]
        return found


def refuse_undistributable(
    contract: Contract, training: Training, draws: str, clients: int | None = None
) -> None:
    """Refuse a training in which noise cannot be distributed; nothing to do where trust is local.

    Raises:
        InputError: too few members, several local steps, or cohorts with a client twice, as larger
            ones than the population (where the number of its clients is known) would be.

    Example:
        >>> from dpcohort.training import Training
        >>> distributed = Contract(trust="distributed", dropouts=4)
        >>> refuse_undistributable(distributed, Training(cohort_size=4), "systematic")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: of a cohort of 4, 0 may collude with the server and 4 may drop
        out, but each member has only 3 others. Lower privacy.colluding or privacy.dropouts, or
        raise training.cohort_size.
    """
    if not contract.is_distributed:
        return
    if training.cohort_size < 2:
        raise InputError(
            "training.cohort_size",
            given=training.cohort_size,
            allowed="at least 2 where trust = 'distributed': one member has nobody to pool its "
            "noise with",
            next_step="Raise it, or set trust = 'local'.",
        )
    contract.honest(training.cohort_size)
    if training.local_steps > 1:
        raise InputError(
            "training.local_steps",
            given=training.local_steps,
            allowed="1 where trust = 'distributed'",
            next_step="The model between two local steps would carry no noise of the others, so "
            "what one record changes would not be bounded. Take more rounds instead.",
        )
    if draws != "systematic":
        raise InputError(
            "draws",
            given=draws,
            allowed="'systematic' where trust = 'distributed'",
            next_step="Independent draws put a client into a cohort twice.",
        )
    if clients is not None and training.cohort_size > clients:
        raise InputError(
            "training.cohort_size",
            given=training.cohort_size,
            allowed=f"at most {clients} where trust = 'distributed': there are so many clients, "
            "and each is in a cohort once",
        )


def with_lattice(
    distributed: NoiseShares, population: Population, training: Training, contract: Contract
) -> NoiseShares:
    """The same with exponent and modulus of the lattice on which a cohort's noise is added up.

    Args:
        distributed: weights and shares.
        population: ids and sizes.
        training: batches and cohort size.
        contract: how batches are drawn: at most all records are in one, or B_k.

    Raises:
        InputError: a weight is so small, or so large, that no lattice holds it; names the client.

    Example:
        >>> from dpcohort.clients import Population
        >>> from dpcohort.training import Training
        >>> people = Population.from_arrays(sizes=[600, 600], epsilon=[1.0, 2.0], delta=1e-5)
        >>> shares = NoiseShares(weights=np.array([0.5, 1.5]), shares=np.full(2, 0.1), honest=2)
        >>> found = with_lattice(shares, people, Training(cohort_size=2, batch_size=60), Contract())
        >>> found.exponent, found.modulus_bits
        (26, 36)
    """
    if distributed.honest == 1:
        return replace(distributed, exponent=0, modulus_bits=0)
    batches = population.batches(training)
    alone = np.where(distributed.weights > 0, distributed.alone_multipliers(batches), 0.0)
    bits = math.log2(max(1.0, float(alone.max())))  # infinite where the weight all but vanishes
    exponent = LEAST_BITS + math.ceil(min(bits, 2.0 * LARGEST_EXPONENT))
    if exponent > LARGEST_EXPONENT:
        strict = _strictest(population, np.flatnonzero(alone > _LARGEST_NOISE))
        raise _misfit(population, float(distributed.weights[strict]), strict, *_TOO_SOFT)
    records = contract.sampler.largest_batch(population.sizes, batches)
    with np.errstate(over="ignore"):
        summands = 2.0**exponent * records / np.where(alone > 0, alone, math.inf)
    loudest = int(np.argmax(summands))
    most = min(float(summands[loudest]), 2.0**MOST_MODULUS_BITS)
    modulus_bits = bits_of_sums(training.cohort_size, exponent, most)
    if modulus_bits > MOST_MODULUS_BITS:
        weight = float(distributed.weights[loudest])
        raise _misfit(population, weight, loudest, "large", f"for sums of {MOST_MODULUS_BITS} bits")
    return replace(distributed, exponent=exponent, modulus_bits=modulus_bits)


def bits_of_sums(members: int, exponent: int, largest: float) -> int:
    """The least b for which no sum of a cohort wraps modulo 2^b.

    Args:
        members: K.
        exponent: e; each adds a share of noise of standard deviation 2^e.
        largest: the largest sum of one client's records on the lattice.

    Example:
        >>> bits_of_sums(2, 26, 3e9)
        34
    """
    total = members * (largest + _FARTHEST * 2.0**exponent)
    return math.floor(math.log2(total)) + 2  # total < 2^(b - 1)


def common_lattice(
    clients: IntArray,
    *,
    weights: FloatArray,
    shares: FloatArray,
    batch_sizes: IntArray,
    population: Population,
    sampler: Sampler,
) -> tuple[FloatArray, FloatArray, IntArray]:
    """The lattice on which one machine adds up each cohort and draws the noise of all its shares.

    Args:
        clients: positions of the members, [..., K].
        weights: g_k of each of them.
        shares: of noise, in units of C.
        batch_sizes: B_k.
        population: ids and sizes.
        sampler: knows how many records are in a batch at most.

    Returns:
        S, the noise of each cohort in units of C; S B_k / g_k of each member, infinite without
        weight; and the exponent e of each cohort.

    Raises:
        InputError: a weight is so small, or so large, that no lattice holds it; names the client.

    Example:
        >>> from dpcohort.clients import Population
        >>> people = Population.from_arrays(sizes=[600, 600], epsilon=[1.0, 2.0], delta=1e-5)
        >>> level, multipliers, exponent = common_lattice(
        ...     np.array([0, 1]), weights=np.array([0.5, 1.5]), shares=np.array([0.3, 0.4]),
        ...     batch_sizes=np.array([60, 60]), population=people, sampler=Contract().sampler)
        >>> float(level), multipliers.tolist(), int(exponent)
        (0.5, [60.0, 20.0], 28)
    """
    heard = weights > 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        levels = np.linalg.norm(shares, axis=-1)
        # Of public clients only: a lattice all the same, as fine as the loudest needs.
        levels = np.where(levels > 0, levels, np.max(weights / batch_sizes, axis=-1))
        multipliers = levels[..., None] * batch_sizes / weights
    multipliers = np.where(heard, multipliers, math.inf)
    soft = heard & ~(multipliers <= _LARGEST_NOISE)
    if soft.any():
        strict = _strictest(population, clients[soft])
        raise _misfit(population, float(weights[clients == strict][0]), strict, *_TOO_SOFT)
    most = np.where(heard, multipliers, 1.0).max(axis=-1, initial=1.0)
    exponents = np.array(
        [LEAST_BITS + math.ceil(math.log2(one)) for one in most.ravel().tolist()], dtype=np.int64
    ).reshape(most.shape)
    records = sampler.largest_batch(population.sizes[clients], batch_sizes)
    with np.errstate(divide="ignore"):
        summands = np.where(multipliers < _SMALLEST_NOISE, math.inf, records / multipliers)
    sums = np.ldexp(summands.sum(axis=-1) + _FARTHEST, exponents)
    if not (sums < 2.0**63).all():
        loud = np.unravel_index(int(np.argmax(summands)), summands.shape)
        words = ("large", "for sums of 63 bits")
        raise _misfit(population, float(weights[loud]), int(clients[loud]), *words)
    return levels, multipliers, exponents


def _strictest(population: Population, clients: IntArray) -> int:
    """Of these clients the one with the smallest budget, which asks for most noise."""
    return int(clients[np.argmin(np.nan_to_num(population.epsilon[clients], nan=math.inf))])


def _misfit(population: Population, weight: float, k: int, size: str, where: str) -> InputError:
    return InputError.because(
        f"the weight of {one_line(population.ids[k])!r} ({weight:.3g}) is too {size} {where}: it "
        "does not fit the lattice on which a cohort is added up. Leave the client out, bring its "
        "budget and size nearer to those of the others, or set trust = 'local'."
    )


def refuse_weightless(population: Population, weights: FloatArray, drawn: BoolArray) -> None:
    """Refuse clients that are drawn with no weight at all: they would only lend their noise.

    Example:
        >>> from dpcohort.clients import Population
        >>> people = Population.from_arrays(sizes=[600, 600], epsilon=[1.0, 2.0], delta=1e-5)
        >>> refuse_weightless(people, np.array([1.0, 1.0]), np.array([True, True]))
    """
    bare = np.flatnonzero(drawn & ~(weights > 0))
    if bare.size:
        name = one_line(population.ids[int(bare[0])])
        raise InputError.because(
            f"the selection gives {name!r} no weight, but cohorts so large need it. Lower "
            "training.cohort_size, leave the client out, or choose a rule that gives everybody "
            "some weight."
        )


def sum_only(what: str, instead: str) -> InputError:
    """Why nothing that looks at single updates goes with distributed noise.

    Args:
        what: what looks at them, and how.
        instead: what to use.

    Example:
        >>> print(sum_only("the aggregation trimmed-mean sorts updates", "the aggregation mean"))
        the aggregation trimmed-mean sorts updates, and where trust = 'distributed' the server sees
        the sum of a cohort only: a sum has no single updates. Use the aggregation mean, or trust =
        'local'.
    """
    return InputError.because(
        f"{what}, and where trust = 'distributed' the server sees the sum of a cohort only: a sum "
        f"has no single updates. Use {instead}, or trust = 'local'."
    )


def adaptive_under_distributed_trust(rule: str) -> InputError:
    """Why a rule that chooses each cohort does not go with distributed noise.

    Example:
        >>> str(adaptive_under_distributed_trust("power-of-choice"))[:45]
        'the rule power-of-choice chooses each cohort '
    """
    return sum_only(
        f"the rule {rule} chooses each cohort from what single clients report or send",
        "a rule whose cohorts are planned, such as privacy-aware",
    )


def trust_terms(contract: Contract, cohort_size: int) -> dict[str, int]:
    """On how many members a client counts, in plain numbers.

    Example:
        >>> trust_terms(Contract(trust="distributed", colluding=0.5), 10)
        {'cohort_size': 10, 'colluding': 5, 'dropouts': 0, 'honest': 5}
    """
    return {
        "cohort_size": cohort_size,
        "colluding": contract.colluders(cohort_size),
        "dropouts": contract.dropouts,
        "honest": contract.honest(cohort_size),
    }


def agreeing_members(cohort_size: int, colluding: int) -> int:
    """t: so many must agree before a masked sum is unmasked, so that no two sets of them can.

    Example:
        >>> agreeing_members(10, 2)
        7
    """
    return (cohort_size + colluding) // 2 + 1


def trust_in_words(trust: Mapping[str, Any]) -> str:
    """On whom a client counts where noise is distributed.

    Args:
        trust: of ``trust_terms``, as a receipt has it.

    Example:
        >>> print(trust_in_words({"cohort_size": 10, "colluding": 4, "dropouts": 1, "honest": 5}))
        distributed: the server sees the sum of a cohort only; of 10 members at most 4 help it and
        at most 1 drops out, so at least 5 shares of noise, the client's own among them, protect it
    """
    members, colluding, dropouts = trust["cohort_size"], trust["colluding"], trust["dropouts"]
    doubts = []
    if colluding:
        doubts.append(f"at most {colluding} {'helps' if colluding == 1 else 'help'} it")
    if dropouts:
        doubts.append(f"at most {dropouts} {'drops' if dropouts == 1 else 'drop'} out")
    shares = (
        "the client's own noise alone protects it"
        if trust["honest"] == 1
        else f"at least {trust['honest']} shares of noise, the client's own among them, protect it"
    )
    said = " and ".join(doubts) or "nobody helps it or drops out"
    seen = "distributed: the server sees the sum of a cohort only"
    return f"{seen}; of {counted(members, 'member')} {said}, so {shares}"

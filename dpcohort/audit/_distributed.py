# SPDX-License-Identifier: Apache-2.0
"""Test L: what a training with distributed noise shows, the sums of its cohorts, keeps to its plan.

The plan says of each client k a weight g_k, a public batch size B_k, a noise multiplier z_k, which
its budget was certified with, and one for its own share of noise alone, m_k. So k's share has the
standard deviation s_k = m_k g_k / B_k (in units of C), and h members surely stay unknown to the
server: of a cohort all but those that may collude or vanish, counted here again.

1. *Arithmetic.* k's own share and the h - 1 smallest of the others must carry z_k g_k / B_k, in
   every cohort of the plan, and nobody is in a cohort twice.
2. *Law.* With gradients of zero, sums of h members, all that may be left, and of whole cohorts are
   normal with variance sum_k s_k^2 C^2, in all and round by round. Each client is in some of them,
   so the share of each shows.
3. *Freshness.* No round has the noise of another, of another seed, or one part of it twice, at any
   shift.
4. *Influence.* Records of every client, of every size, move a sum by at most g_k C / B_k (twice
   that if turned around), also where more records take part than B_k. The records of a cohort have
   coordinates of their own, so that what each did can be told apart, and all of them together may
   do no more than the length of these bounds. Where a seed repeats, the noise cancels and the bound
   is exact; elsewhere all shares are made small together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting import Contract
from dpcohort.accounting._distributed import NoiseShares
from dpcohort.accounting._sampler import Sampler
from dpcohort.audit._claims import Finding
from dpcohort.audit._noise import correlations, unlike_normal
from dpcohort.clients import Population
from dpcohort.plan import Plan, make_plan
from dpcohort.planning._noise import DistributedNoise
from dpcohort.schedule import Schedule
from dpcohort.training import Training

#: ``sums(claim, gradients, seed=...)``: the sum [rounds, D] that the server learns in each round of
#: the claim's schedule, in units of the step size, if clients hold records of these raw gradients.
MaskedSums = Callable[..., FloatArray]

_BLOCK = 8  # coordinates of a record whose influence is measured
_SIZES = (1e3, 1 + 1e-7, math.inf)  # of a record's gradient, in units of C
_TOLERANCE = 1e-5
_SMALL_NOISE = 2.0**-19  # against the largest influence of a record
_NO_NOISE = 0.1  # of the claim
_MOVED = 0.5  # of the bound, at least, by a record that is longer than C


@dataclass(frozen=True, kw_only=True)
class DistributedClaim:
    """What a plan with distributed noise claims; engines train by it as by the plan itself.

    Attributes:
        training: clip, cohort size.
        schedule: cohorts.
        contract: sampler, and who may collude or vanish.
        population: sizes.
        noise_multipliers: z_k, with h honest members.
        alone_multipliers: m_k, of each client's own share.
        batch_sizes: B_k.
        sampling_rates: r_k.
        distributed: weights and shares.
    """

    training: Training
    schedule: Schedule
    contract: Contract
    population: Population
    noise_multipliers: FloatArray
    alone_multipliers: FloatArray
    batch_sizes: IntArray
    sampling_rates: FloatArray
    distributed: NoiseShares

    @classmethod
    def of(cls, plan: Plan | DistributedClaim) -> DistributedClaim:
        """What this plan, or whoever trains by such a claim, claims."""
        columns = {f.name: getattr(plan, f.name) for f in fields(cls) if f.name != "distributed"}
        return cls(**columns, distributed=plan.noise.pool)

    @property
    def noise(self) -> DistributedNoise:
        """Multipliers and shares, as engines take them."""
        return DistributedNoise(
            multipliers=self.noise_multipliers,
            lifted=np.zeros(len(self.population), dtype=np.bool_),
            pool=self.distributed,
        )

    @property
    def honest(self) -> int:
        """Members of a cohort, oneself among them, whose noise surely remains."""
        # Not asked of the contract: where it counts on too many, that must be found.
        helping = self.contract.colluders(self.training.cohort_size)
        return self.training.cohort_size - helping - self.contract.dropouts

    @property
    def influences(self) -> FloatArray:
        """What a record of each client may do to a sum, g_k / B_k in units of C."""
        return np.asarray(self.distributed.weights / self.batch_sizes, dtype=np.float64)

    @property
    def shares(self) -> FloatArray:
        """Noise that each client adds, s_k in units of C; that of public ones is only stated."""
        held = np.nan_to_num(self.noise_multipliers) > 0
        own = np.nan_to_num(self.alone_multipliers, posinf=0.0) * self.influences
        return np.where(held, own, self.distributed.shares)

    def with_cohorts(self, cohorts: IntArray) -> DistributedClaim:
        """The same with other cohorts, of at least h members."""
        return replace(
            self,
            training=replace(self.training, rounds=len(cohorts)),
            schedule=Schedule(cohorts=cohorts, clients=len(self.population)),
        )

    def with_noise(self, factor: float) -> DistributedClaim:
        """The same with all noise times a factor."""
        return replace(
            self,
            noise_multipliers=self.noise_multipliers * factor,
            alone_multipliers=self.alone_multipliers * factor,
            distributed=replace(self.distributed, shares=self.distributed.shares * factor),
        )

    def with_all_records(self) -> DistributedClaim:
        """The same with every record in every batch: fixed batches leave no record over."""
        if self.contract.sampler.has_constant_batches:
            return replace(self, population=public_clients(self.batch_sizes))
        return replace(self, sampling_rates=np.ones(len(self.population)))


def public_clients(sizes: IntArray) -> Population:
    """Clients of these sizes without budgets: what they claim is told apart."""
    return Population.from_arrays(
        sizes=sizes, epsilon=np.nan, delta=np.nan, public=[True] * sizes.size
    )


def example_plan(sampler: str | Sampler = "poisson", clip: float = 1.0) -> Plan:
    """A small plan with distributed noise to audit a training by: budgets far apart, one public.

    Example:
        >>> plan = example_plan()
        >>> plan.noise.honest, plan.training.cohort_size
        (3, 5)
    """
    return make_plan(
        Population.from_arrays(
            sizes=[16, 20, 24, 18, 30, 16, 22, 20],
            epsilon=[0.5, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, np.nan],
            delta=[1e-5] * 7 + [np.nan],
            public=[False] * 7 + [True],
        ),
        Training(rounds=6, cohort_size=5, batch_size=8, clip=clip),
        selection="unbiased",
        accountant=Contract.of("tight", sampler, trust="distributed", colluding=1, dropouts=1),
        seed=3,
    )


def masked_sum(
    sums: MaskedSums,
    plan: Plan | DistributedClaim,
    *,
    seed: int = 0,
    dimension: int = 20_000,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Test the sums of a training with distributed noise against its plan.

    Args:
        sums: the training, ``EngineUnderTest(kind, distributed=True).sums`` for one of ours.
        plan: with distributed trust, or what it claims.
        seed: of the tests, and for the training.
        dimension: length of the sums whose noise is looked at.
        false_alarm_rate: probability that a correct training fails.

    Example:
        >>> from dpcohort.audit import EngineUnderTest
        >>> training = EngineUnderTest("batched", distributed=True)
        >>> masked_sum(training.sums, example_plan(), dimension=5000).passed
        True
    """
    claim = DistributedClaim.of(plan)
    repeatable = _repeats(sums, claim, seed)
    level = false_alarm_rate / (2 if repeatable else 3)
    problems = list(_unaccounted(claim))
    noise = _noises(sums, claim, seed, dimension)
    problems += unlike_normal(noise, level) + list(_stale(noise, level))
    ratios, allowed = _influences(sums, claim, seed, level, repeatable=repeatable)
    for k in np.flatnonzero(~(ratios <= allowed)).tolist():
        problems.append(f"records of client {k} moved a sum by {ratios[k]:.5f} of their bound")
    if not (ratios[claim.distributed.weights > 0] > _MOVED).all():
        problems.append("a record never took part, so nothing was tested")
    client = int(np.argmax(ratios))
    worst = float(ratios[client])
    size = float(np.sqrt(np.mean(noise**2)))
    return Finding(
        test="L distributed sum",
        passed=not problems,
        detail="; ".join(
            [
                f"noise of the sums relative to the claim: {size:.4f}; one record moved a sum by "
                f"up to {worst:.6f} of the bound of its weight (client {client}); "
                f"{claim.honest} of {claim.training.cohort_size} members are counted on",
                *problems[:3],
            ]
        ),
        false_alarm_rate=false_alarm_rate,
        measured={"noise": size, "influence": worst},
    )


def _repeats(sums: MaskedSums, claim: DistributedClaim, seed: int) -> bool:
    once, again = (
        sums(claim.with_cohorts(_cohorts(claim)[0][:1]), _records(claim, 16), seed=seed)
        for _ in range(2)
    )
    return bool(np.array_equal(once, again, equal_nan=True))


def _unaccounted(claim: DistributedClaim) -> Iterator[str]:
    """Cohorts of the plan that do not hold the noise that its certificates count on."""
    needed = np.nan_to_num(claim.noise_multipliers) * claim.influences
    for t, cohort in enumerate(claim.schedule.cohorts):
        if np.unique(cohort).size < cohort.size:
            yield f"a client is twice in the cohort of round {t}"
        squares = np.sort(claim.shares[cohort] ** 2)
        for k in cohort.tolist():
            others = np.delete(squares, np.searchsorted(squares, claim.shares[k] ** 2))
            sure = math.sqrt(claim.shares[k] ** 2 + others[: claim.honest - 1].sum())
            if not needed[k] <= sure * (1 + 1e-9):
                yield f"{claim.honest} shares in round {t} carry {sure / needed[k]:.3f} of z"
    drawn = claim.distributed.weights > 0
    if not np.allclose(claim.shares[drawn], claim.distributed.shares[drawn], rtol=1e-9):
        yield "the shares are not those that protect each client alone"


def _cohorts(claim: DistributedClaim) -> tuple[IntArray, IntArray]:
    """Cohorts of h members and of all, in which every drawn client is."""
    drawn = np.flatnonzero(claim.distributed.weights > 0)
    least, most = max(claim.honest, claim.distributed.honest), claim.training.cohort_size
    few, all_of_them = (
        np.stack([np.roll(drawn, -i)[:size] for i in range(drawn.size)]) for size in (least, most)
    )
    return few, all_of_them


def _records(claim: DistributedClaim, dimension: int) -> list[FloatArray]:
    return [np.zeros((size, dimension)) for size in claim.population.sizes.tolist()]


def _noises(sums: MaskedSums, claim: DistributedClaim, seed: int, dimension: int) -> FloatArray:
    """Sums [rounds, D] without gradients that should be standard normal."""
    noises = []
    for number, cohorts in enumerate(_cohorts(claim)):
        noise = sums(claim.with_cohorts(cohorts), _records(claim, dimension), seed=seed + number)
        sizes = np.linalg.norm(claim.shares[cohorts], axis=1) * claim.training.clip
        noises.append(np.asarray(noise, dtype=np.float64) / sizes[:, None])
    return np.concatenate(noises)


def _stale(noise: FloatArray, level: float) -> Iterator[str]:
    """Noise that was there before, in another round or in another place."""
    dimension = noise.shape[1]
    rows = {str(i): row for i, row in enumerate(noise)}
    scores, threshold = correlations(rows, _NO_NOISE * math.sqrt(dimension), level)
    for (a, b), score in scores.items():
        if not score <= threshold:
            yield f"the noise of sums {a} and {b} is related"


def _influences(
    sums: MaskedSums, claim: DistributedClaim, seed: int, level: float, *, repeatable: bool
) -> tuple[FloatArray, FloatArray]:
    """How far records of each client moved a sum, in units of the bound, and what is allowed."""
    cohorts = _cohorts(claim)[1][:: claim.training.cohort_size]  # everybody in one of them
    everybody = np.arange(len(claim.population))
    dimension = _BLOCK * everybody.size
    slack = np.zeros(everybody.size)
    if not repeatable:
        carried = np.linalg.norm(claim.shares[cohorts], axis=1)[:, None] / claim.influences[cohorts]
        factor = _SMALL_NOISE / float(carried.min())
        length = math.sqrt(dimension) + math.sqrt(2 * math.log(1e4 / level))
        np.maximum.at(slack, cohorts, math.sqrt(2) * factor * carried * length)
        claim = claim.with_noise(factor)
    claim = claim.with_all_records().with_cohorts(cohorts)
    bounds, most = claim.influences * claim.training.clip, float(slack.max())
    rng = np.random.default_rng([seed, 12])
    ratios = np.zeros(everybody.size)
    for size in _SIZES:
        company = [
            rng.standard_normal((n, dimension)) * claim.training.clip
            for n in claim.population.sizes.tolist()
        ]
        blocks = np.zeros((everybody.size, everybody.size, _BLOCK))
        blocks[everybody, everybody] = rng.standard_normal((everybody.size, _BLOCK))
        rows = blocks.reshape(everybody.size, dimension)
        rows *= claim.training.clip / np.linalg.norm(rows, axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):  # numbers that are none are given on purpose
            there, null, turned = (
                _world(sums, claim, company, rows * sign, seed) for sign in (size, 0.0, -size)
            )
            for gaps in (there - null, (there - turned) / 2):
                sizes = np.linalg.norm(gaps.reshape(len(cohorts), -1, _BLOCK), axis=2)
                done = np.take_along_axis(sizes, cohorts, axis=1) / bounds[cohorts]
                # All together, so that nothing is done outside of the blocks either.
                whole = np.linalg.norm(gaps, axis=1) / np.linalg.norm(bounds[cohorts], axis=1)
                done = np.maximum(
                    done, np.where(whole <= 1 + _TOLERANCE + most, 0.0, whole)[:, None]
                )
                done[np.isnan(done)] = math.inf
                np.maximum.at(ratios, cohorts, done)
    return ratios, 1 + _TOLERANCE + slack


def _world(
    sums: MaskedSums,
    claim: DistributedClaim,
    company: list[FloatArray],
    rows: FloatArray,
    seed: int,
) -> FloatArray:
    """Sums in which these are the first records of the clients."""
    held = [np.concatenate([row[None], own[1:]]) for row, own in zip(rows, company, strict=True)]
    return np.asarray(sums(claim, held, seed=seed), dtype=np.float64)


def stacked(gradients: Sequence[FloatArray]) -> tuple[FloatArray, dict[str, Any]]:
    """All clients' rows, and which are whose.

    Example:
        >>> rows, whose = stacked([np.zeros((2, 3)), np.ones((1, 3))])
        >>> rows.shape, whose["offsets"].tolist()
        ((3, 3), [0, 2, 3])
    """
    rows = np.concatenate(list(gradients))
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in gradients])])
    return rows, {"indices": np.arange(len(rows)), "offsets": offsets}

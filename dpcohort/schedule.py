# SPDX-License-Identifier: Apache-2.0
"""All cohorts, drawn before training (Algorithm 1, lines 3 and 4).

Both kinds give every draw of every round the marginal probabilities asked for:

- ``independent``, as in the paper: each draw is made on its own, so T_k is binomial.
- ``systematic``: one comb of n equally spaced teeth over the cumulative probabilities. Each T_k is
  the floor or the ceiling of its mean n p_k, so no client is drawn far more often than planned and
  has its noise raised for it; equal draws are dealt to different rounds like cards.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from dpcohort._validate import FloatArray, IntArray, choice, whole_number
from dpcohort.errors import InputError

__all__ = ["Draws", "Schedule", "draw_schedule", "once_in_a_cohort"]

Draws = Literal["systematic", "independent"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Who takes part in which round.

    Attributes:
        cohorts: client positions, one row per round, one column per draw.
        clients: number of clients in the population.
        draws: how the cohorts were drawn.
    """

    cohorts: IntArray
    clients: int
    draws: Draws = "systematic"

    def __post_init__(self) -> None:
        choice("draws", self.draws, get_args(Draws))
        cohorts = np.ascontiguousarray(self.cohorts, dtype=np.int64)
        if cohorts.ndim != 2 or cohorts.size == 0:
            raise InputError("cohorts", given=cohorts.shape, allowed="rounds x draws, none empty")
        if cohorts.min() < 0 or cohorts.max() >= self.clients:
            raise InputError(
                "cohorts",
                given=int(cohorts.max()),
                allowed=f"client positions 0 to {self.clients - 1}",
            )
        cohorts.setflags(write=False)
        object.__setattr__(self, "cohorts", cohorts)

    @property
    def rounds(self) -> int:
        """T^g."""
        return int(self.cohorts.shape[0])

    @property
    def cohort_size(self) -> int:
        """N^select."""
        return int(self.cohorts.shape[1])

    @cached_property
    def counts(self) -> IntArray:
        """How often each client is drawn over all rounds, T_k."""
        counts = np.bincount(self.cohorts.ravel(), minlength=self.clients).astype(
            np.int64, copy=False
        )
        counts.setflags(write=False)
        return counts

    @cached_property
    def sha256(self) -> str:
        """Hash of who is drawn when; equal schedules have equal hashes on every machine."""
        digest = hashlib.sha256(f"{self.clients} {self.rounds} {self.cohort_size}\n".encode())
        digest.update(self.cohorts.astype("<i8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)


def draw_schedule(
    probabilities: FloatArray,
    *,
    rounds: int,
    cohort_size: int,
    draws: str = "systematic",
    rng: np.random.Generator,
) -> Schedule:
    """Draw all cohorts of a training run (Algorithm 1, line 3).

    Args:
        probabilities: p^s, one per client, summing to 1.
        rounds: T^g.
        cohort_size: draws per round, N^select.
        draws: ``systematic`` or ``independent``.
        rng: source of the randomness; a schedule is public, so a seeded one is fine.

    Example:
        >>> schedule = draw_schedule(np.array([0.5, 0.25, 0.25]), rounds=4, cohort_size=2,
        ...                          rng=np.random.default_rng(0))
        >>> schedule.counts
        array([4, 2, 2])
    """
    whole_number("rounds", rounds, at_least=1)
    whole_number("cohort_size", cohort_size, at_least=1)
    choice("draws", draws, get_args(Draws))
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 1 or p.size == 0 or not np.isfinite(p).all() or (p < 0).any():
        raise InputError.because("probabilities must be a list of finite numbers of at least 0.")
    if abs(p.sum() - 1) > 1e-9:
        raise InputError("sum of probabilities", given=float(p.sum()), allowed="1")
    if draws == "independent":
        drawn = np.searchsorted(_cumulative(p), rng.random(rounds * cohort_size), side="right")
        cohorts = drawn.astype(np.int64).reshape(rounds, cohort_size)
        return Schedule(cohorts=cohorts, clients=p.size, draws="independent")
    return Schedule(cohorts=_systematic(p, rounds, cohort_size, rng), clients=p.size)


def _cumulative(p: FloatArray) -> FloatArray:
    """Right edges of the clients' shares of [0, 1]; the last positive share ends at exactly 1."""
    edges = np.cumsum(p)
    edges /= edges[-1]
    # Rounding must not leave a sliver at the end that falls to a client of probability 0.
    edges[np.flatnonzero(p)[-1] :] = 1.0
    return edges


def _systematic(p: FloatArray, rounds: int, cohort_size: int, rng: np.random.Generator) -> IntArray:
    # A random order of the clients makes joint draws of neighbours in the list no more likely than
    # of any other pair.
    order = rng.permutation(p.size)
    total = rounds * cohort_size
    teeth = (rng.random() + np.arange(total)) / total
    drawn = order[np.searchsorted(_cumulative(p[order]), teeth, side="right")]
    # Equal clients now stand side by side: dealing them out one round at a time keeps a client
    # with at most T^g draws from ever being drawn twice in a round. Random rounds and places
    # in them give each draw the same marginal.
    dealt = drawn.reshape(cohort_size, rounds)[:, rng.permutation(rounds)].T
    return rng.permuted(np.ascontiguousarray(dealt), axis=1)


def once_in_a_cohort(wanted: FloatArray, cohort_size: int) -> FloatArray:
    """The wanted probabilities, none above 1 / K: once in every cohort is the most there is.

    Example:
        >>> once_in_a_cohort(np.array([0.7, 0.2, 0.1]), 2).round(3)
        array([0.5  , 0.333, 0.167])
    """
    cap, found = 1.0 / cohort_size, wanted.copy()
    full = found > cap
    while full.any() and not (full | (found <= 0)).all():
        rest = np.where(full, 0.0, wanted)
        scaled = rest * ((1.0 - cap * full.sum()) / rest.sum())
        found = np.where(full, cap, scaled)
        over = ~full & (found > cap)
        if not over.any():
            break
        full |= over
    found = np.minimum(found, cap)
    left = 1.0 - found.sum()
    if left > 1e-12:  # fewer clients are wanted than a cohort has members
        room = np.where(found < cap, cap - found, 0.0)
        found = found + room * (left / room.sum())
    return found

# SPDX-License-Identifier: Apache-2.0
"""All that an adaptive rule may look at: public facts, noisy reports and noised updates.

There is no way from here to a record, a model, an engine or the desk that computes reports: a view
is plain numbers. What a rule makes of them is post-processing and costs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray

__all__ = ["Report", "RoundView"]


@dataclass(frozen=True)
class Report:
    """What one client reported in one round; it carries its noise.

    Attributes:
        round: when it was asked.
        client: position of the client.
        value: the noisy mean.
    """

    round: int
    client: int
    value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundView:
    """What is known before a round.

    Attributes:
        round: its number, from 0.
        cohort_size: draws in each round.
        ids: the clients' names.
        sizes: public numbers of records.
        epsilon: public budgets; NaN for public clients.
        public: clients whose data needs no privacy.
        draws_left: how often each client may still be drawn.
        reports_left: how often each client may still be asked.
        cohorts: the cohorts of all rounds before, oldest first.
        reports: all reports so far, oldest first.
        updates: of clients drawn before, the last noised update (a sketch of it), by position;
            only filled for rules that ask for it.
        report_stds: public noise on each client's report; None where there is none.
        seed: public; the only source of a rule's chance.

    Example:
        >>> view = RoundView(round=0, cohort_size=1, ids=("a", "b"), sizes=np.array([10, 30]),
        ...                  epsilon=np.ones(2), public=np.zeros(2, bool),
        ...                  draws_left=np.array([0, 2]), reports_left=np.array([1, 1]), seed=0)
        >>> view.candidates.tolist()
        [1]
    """

    round: int
    cohort_size: int
    ids: tuple[str, ...]
    sizes: IntArray
    epsilon: FloatArray
    public: BoolArray
    draws_left: IntArray
    reports_left: IntArray
    seed: int
    cohorts: tuple[IntArray, ...] = ()
    reports: tuple[Report, ...] = ()
    report_stds: FloatArray | None = None
    updates: Mapping[int, FloatArray] = field(default_factory=dict)

    @property
    def candidates(self) -> IntArray:
        """Clients below their participation cap."""
        return np.flatnonzero(self.draws_left > 0)

    @property
    def can_report(self) -> IntArray:
        """Candidates that may still be asked."""
        return np.flatnonzero((self.draws_left > 0) & (self.reports_left > 0))

    def chances(self, purpose: str) -> FloatArray:
        """A uniform number in (0, 1) for each client: the rule's dice, public and repeatable.

        A client's number depends on the seed, the round, the purpose and its id alone, so that
        the order in which clients are listed changes nothing.
        """
        head = f"{self.seed}/{self.round}/{purpose}/".encode()
        words = b"".join(
            hashlib.blake2b(head + name.encode(), digest_size=8).digest() for name in self.ids
        )
        bits = np.frombuffer(words, dtype="<u8") >> np.uint64(11)
        return (bits.astype(np.float64) + 0.5) * 2.0**-53

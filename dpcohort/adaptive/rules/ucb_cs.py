# SPDX-License-Identifier: Apache-2.0
"""UCB-CS: drawn clients report their loss; a discounted bandit decides who is drawn next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number
from dpcohort.adaptive.choosing import largest
from dpcohort.adaptive.report_terms import Statistic
from dpcohort.adaptive.view import RoundView

__all__ = ["BanditLoss"]


@dataclass(frozen=True, kw_only=True)
class BanditLoss:
    """The largest upper confidence bounds of the clients' discounted losses.

    ::

        A_k = p_k (L_k / N_k + sqrt(2 s² ln T / N_k)),     p_k = n_k / Σ n,
        L_k = Σ_{t'} γ^{t-t'} ℓ_k(t'),   N_k = Σ_{t'} γ^{t-t'} 1[k reported at t'],
        T = Σ_{t' ≤ t} γ^{t-t'},

    and a client without a report comes first. Cho, Gupta, Joshi and Yağan, Bandit-based
    Communication-Efficient Client Selection Strategies for Federated Learning, 2020 (formula from
    two public re-implementations; the paper's text was not read). There s is the largest standard
    deviation of a client's losses in the last round, which would be one more report; one of the
    two takes it as 1, and here it is the setting ``exploration``. ℓ_k is the loss of the model the
    client receives, not its mean over the local steps.

    Attributes:
        gamma: γ, how much an older report counts, in (0, 1].
        exploration: s.

    Example:
        >>> BanditLoss(gamma=0.7).exploration
        1.0
    """

    name: ClassVar[str] = "ucb-cs"
    needs: ClassVar[str] = "the loss of drawn clients only"
    leaks: ClassVar[str] = "one noised loss a participation, charged; raw ones if asked for raw"
    reference: ClassVar[str] = "UCB-CS: Cho et al., 2020"
    statistic: ClassVar[Statistic | None] = "loss"
    mini_batch: ClassVar[bool] = False
    watches_updates: ClassVar[bool] = False

    gamma: float = 0.9
    exploration: float = 1.0

    def __post_init__(self) -> None:
        number("gamma", self.gamma, above=0, at_most=1)
        number("exploration", self.exploration, at_least=0)

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Any population will do."""

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """One a participation."""
        return min(rounds, draw_cap)

    def indices(self, view: RoundView) -> FloatArray:
        """A_k of every client; infinite without a report."""
        total, count = np.zeros(len(view.ids)), np.zeros(len(view.ids))
        for report in view.reports:
            discount = self.gamma ** (view.round - report.round)
            total[report.client] += discount * report.value
            count[report.client] += discount
        horizon = sum(self.gamma**age for age in range(view.round + 1))
        share = view.sizes / view.sizes.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = np.sqrt(2 * self.exploration**2 * math.log(horizon) / count)
            index = share * (total / count + bonus)
        return np.where(count > 0, index, np.inf)

    def ask(self, view: RoundView) -> IntArray:
        """Those who will be drawn."""
        among = view.can_report
        return largest(view, among, view.cohort_size, scores=self.indices(view)[among])

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Those who were asked: their answers serve the rounds to come."""
        return np.array(sorted(answers), dtype=np.int64)

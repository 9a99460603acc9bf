# SPDX-License-Identifier: Apache-2.0
"""Oort / PyramidFL utility: size times the root mean square loss, with exploration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number
from dpcohort.adaptive.choosing import draw_without_replacement
from dpcohort.adaptive.report_terms import Statistic
from dpcohort.adaptive.view import RoundView

__all__ = ["StatisticalUtility"]

_STALENESS = 0.1


@dataclass(frozen=True, kw_only=True)
class StatisticalUtility:
    """Draws in proportion to statistical utility among the best, and explores the unknown.

    ::

        U_k = n_k sqrt(mean of ℓ²),  cut at its ``clip_quantile``, brought to [0, 1] by its range,
        score_k = U_k + sqrt(0.1 ln t / t_k),      t_k the round of k's last report.

    An exploration share e_t = max(least_exploration, exploration decay^t) of the cohort goes to
    clients without a report, drawn in proportion to their sizes; the others are drawn in proportion
    to their score among those with a score of at least ``cut_off`` times that of the last of the
    best. Lai et al., Oort, OSDI 2021; Li et al., PyramidFL, MobiCom 2022 (both read in their public
    code; defaults are PyramidFL's). Left out: round times, which a simulation does not have, and
    PyramidFL's gradient norms, which would be one more report.

    Attributes:
        exploration: e_0.
        decay: how e_t falls in a round.
        least_exploration: where it stops falling.
        clip_quantile: of the utilities; larger ones count as this.
        cut_off: how far below the best a score may be.

    Example:
        >>> round(StatisticalUtility().exploration_share(10), 3)
        0.539
    """

    name: ClassVar[str] = "oort"
    needs: ClassVar[str] = "the mean squared loss of drawn clients only"
    leaks: ClassVar[str] = "one noised mean a participation, charged; raw ones if asked for raw"
    reference: ClassVar[str] = "Oort: Lai et al., OSDI 2021; PyramidFL: Li et al., MobiCom 2022"
    statistic: ClassVar[Statistic | None] = "squared-loss"
    mini_batch: ClassVar[bool] = False
    watches_updates: ClassVar[bool] = False

    exploration: float = 0.9
    decay: float = 0.95
    least_exploration: float = 0.2
    clip_quantile: float = 0.98
    cut_off: float = 0.7

    def __post_init__(self) -> None:
        for name in ("exploration", "least_exploration", "cut_off"):
            number(name, getattr(self, name), at_least=0, at_most=1)
        for name in ("decay", "clip_quantile"):
            number(name, getattr(self, name), above=0, at_most=1)

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Any population will do."""

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """One a participation."""
        return min(rounds, draw_cap)

    def exploration_share(self, round: int) -> float:
        """e_t."""
        return max(self.least_exploration, self.exploration * self.decay**round)

    def scores(self, view: RoundView) -> FloatArray:
        """The score of every client; NaN without a report."""
        scores = np.full(len(view.ids), np.nan)
        last = {report.client: report for report in view.reports}
        known = np.array(sorted(last), dtype=np.int64)
        if not known.size:
            return scores
        squares = np.array([max(0.0, last[k].value) for k in known.tolist()])
        utility = view.sizes[known] * np.sqrt(squares)
        utility = np.minimum(utility, np.quantile(utility, self.clip_quantile, method="lower"))
        spread = float(utility.max() - utility.min())
        normal = (utility - utility.min()) / spread if spread > 0 else np.zeros(known.size)
        since = np.array([last[k].round + 1 for k in known.tolist()])
        scores[known] = normal + np.sqrt(_STALENESS * math.log(view.round + 1) / since)
        return scores

    def ask(self, view: RoundView) -> IntArray:
        """Those who will be drawn."""
        among, scores = view.can_report, self.scores(view)
        unknown = among[np.isnan(scores[among])]
        known = among[~np.isnan(scores[among])]
        explored = min(unknown.size, round(self.exploration_share(view.round) * view.cohort_size))
        explored = max(explored, min(unknown.size, view.cohort_size - known.size))
        sizes = view.sizes.astype(np.float64)
        fresh = draw_without_replacement(view, unknown, explored, weights=sizes, purpose="explore")
        exploited = view.cohort_size - fresh.size
        if exploited and known.size > exploited:
            last_of_best = np.sort(scores[known])[-exploited]
            known = known[scores[known] >= self.cut_off * last_of_best]
        weights = np.nan_to_num(scores, nan=0.0)
        best = draw_without_replacement(view, known, exploited, weights=weights, purpose="exploit")
        return np.concatenate([fresh, best])

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Those who were asked: their answers serve the rounds to come."""
        return np.array(sorted(answers), dtype=np.int64)

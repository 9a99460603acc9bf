# SPDX-License-Identifier: Apache-2.0
"""Communication-efficient power-of-choice (rpow-d): the last loss each candidate reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.adaptive.choosing import draw_without_replacement, largest, shrunk
from dpcohort.adaptive.rules.power_of_choice import PowerOfChoice
from dpcohort.adaptive.view import RoundView

__all__ = ["RecentPowerOfChoice"]


@dataclass(frozen=True, kw_only=True)
class RecentPowerOfChoice(PowerOfChoice):
    """As power-of-choice, ranked by the loss a client reported when it was last drawn.

    Cho, Wang and Joshi, AISTATS 2022, rpow-d. Only drawn clients report, so it costs one report a
    participation instead of d a round. A client that never reported counts as infinitely lossy
    (read in a public re-implementation). The original averages the loss over the local steps; here
    it is the loss of the model the client received.

    Attributes:
        d: candidates in each round; None means everybody.
        shrink: as in power-of-choice.

    Example:
        >>> RecentPowerOfChoice(d=6).expected_reports(clients=100, rounds=50, draw_cap=4)
        4
    """

    name: ClassVar[str] = "rpow-d"
    needs: ClassVar[str] = "the loss of drawn clients only"
    leaks: ClassVar[str] = "one noised loss a participation, charged; raw ones if asked for raw"
    reference: ClassVar[str] = "rpow-d: Cho et al., AISTATS 2022"

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """One a participation."""
        return min(rounds, draw_cap)

    def ask(self, view: RoundView) -> IntArray:
        """Those who will be drawn."""
        count = len(view.ids) if self.d is None else self.d
        weights = view.sizes.astype(np.float64)
        among = draw_without_replacement(
            view, view.can_report, count, weights=weights, purpose="candidates"
        )
        last = {report.client: report.value for report in view.reports}
        scores = np.array([last.get(k, np.inf) for k in among.tolist()])
        heard = np.isfinite(scores)
        if self.shrink and view.report_stds is not None:
            scores[heard] = shrunk(scores[heard], view.report_stds[among[heard]])
        return largest(view, among, view.cohort_size, scores=scores)

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Those who were asked: their answers serve the rounds to come."""
        return np.array(sorted(answers), dtype=np.int64)

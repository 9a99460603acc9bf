# SPDX-License-Identifier: Apache-2.0
"""Power-of-choice (pow-d): of d candidates, those with the largest current loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import IntArray, whole_number
from dpcohort.adaptive.choosing import draw_without_replacement, largest, shrunk
from dpcohort.adaptive.report_terms import Statistic
from dpcohort.adaptive.view import RoundView
from dpcohort.errors import InputError

__all__ = ["PowerOfChoice"]


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice:
    """The largest losses among d candidates drawn in proportion to their sizes (pow-d).

    Each round d candidates are drawn without replacement, p_k ∝ n_k; each reports the mean loss
    of the current model on its records; the N^select largest take part. Cho, Wang and Joshi,
    Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022 (rule read
    in the authors' code). With d = N it is the baseline "biased: largest local loss".

    Every candidate pays for its report, also when it is not drawn: about d/N of a report a round.

    Attributes:
        d: candidates in each round; None asks everybody.
        shrink: rank by the reports drawn towards their mean according to their noise, so that a
            large report of a strict budget, which is mostly noise, does not win. Not in the paper.

    Example:
        >>> PowerOfChoice(d=6).expected_reports(clients=100, rounds=50, draw_cap=4)
        6
    """

    name: ClassVar[str] = "power-of-choice"
    needs: ClassVar[str] = "the current loss of d clients each round"
    leaks: ClassVar[str] = "d noised losses a round, charged; all of them if raw"
    reference: ClassVar[str] = "pow-d: Cho et al., AISTATS 2022"
    statistic: ClassVar[Statistic | None] = "loss"
    mini_batch: ClassVar[bool] = False
    watches_updates: ClassVar[bool] = False

    d: int | None = None
    shrink: bool = False

    def __post_init__(self) -> None:
        if self.d is not None:
            object.__setattr__(self, "d", whole_number("d", self.d, at_least=1))
        if not isinstance(self.shrink, bool):
            raise InputError("shrink", given=self.shrink, allowed="true or false")

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Refuse a d below a cohort or above all clients."""
        if self.d is None:
            return
        if self.d > clients:
            raise InputError("d", given=self.d, allowed=f"at most the number of clients, {clients}")
        if self.d < min(cohort_size, clients):
            raise InputError(
                "d",
                given=self.d,
                allowed=f"at least the cohort size, {cohort_size}",
                next_step="The cohort is chosen among the d candidates.",
            )

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """Twice a client's mean number of reports, at most one a round."""
        asked = clients if self.d is None else self.d
        return min(rounds, -(-2 * rounds * asked // clients))

    def ask(self, view: RoundView) -> IntArray:
        """So many (d) of those who may still be drawn and asked, in proportion to their sizes."""
        asked = len(view.ids) if self.d is None else self.d
        weights = view.sizes.astype(np.float64)
        return draw_without_replacement(
            view, view.can_report, asked, weights=weights, purpose="candidates"
        )

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Those with the largest reported loss."""
        among = np.array(sorted(answers), dtype=np.int64)
        scores = np.array([answers[k] for k in among.tolist()])
        if self.shrink and view.report_stds is not None:
            scores = shrunk(scores, view.report_stds[among])
        return largest(view, among, view.cohort_size, scores=scores)

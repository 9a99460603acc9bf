# SPDX-License-Identifier: Apache-2.0
"""Donated data: public clients take a fixed part of every cohort, the others the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import IntArray, number
from dpcohort.adaptive.choosing import draw_without_replacement
from dpcohort.adaptive.report_terms import Statistic
from dpcohort.adaptive.view import RoundView
from dpcohort.errors import InputError

__all__ = ["DonatedData"]


@dataclass(frozen=True, kw_only=True)
class DonatedData:
    """Gives a share of the draws to public clients, and draws the others by size.

    In Hybrid-FL (Yoshida et al., ICC 2020; only the abstract was read) a few clients upload their
    records and the server trains on them beside the clients. Here such records are a public
    client: it has no budget, adds no noise and has no cap. Neither part depends on data, so
    nothing is reported. Hybrid-FL's greedy choice of donors under a time limit is not built:
    whoever donates is in the population as public.

    Attributes:
        public_share: of the draws of each round that goes to public clients, in (0, 1); at least
            one draw.

    Example:
        >>> DonatedData(public_share=0.2).statistic is None
        True
    """

    name: ClassVar[str] = "donated"
    needs: ClassVar[str] = "at least one public client"
    leaks: ClassVar[str] = "the donated records, wholly; of the others nothing more"
    reference: ClassVar[str] = "in the spirit of Hybrid-FL: Yoshida et al., ICC 2020"
    statistic: ClassVar[Statistic | None] = None
    mini_batch: ClassVar[bool] = False
    watches_updates: ClassVar[bool] = False

    public_share: float = 0.1

    def __post_init__(self) -> None:
        number("public_share", self.public_share, above=0, below=1)

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Somebody must have donated."""
        if public == 0:
            raise InputError.because(
                "the rule donated needs public clients and there is none. Add [[population.public]]"
                " to the config, set data.public_share, or mark clients as public in the CSV file."
            )

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """None."""
        return 0

    def ask(self, view: RoundView) -> IntArray:
        """Nobody."""
        return np.array([], dtype=np.int64)

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Public clients for their share, then the others in proportion to their sizes."""
        sizes = view.sizes.astype(np.float64)
        among = view.candidates
        wanted = max(1, round(self.public_share * view.cohort_size))
        donors = draw_without_replacement(
            view, among[view.public[among]], wanted, weights=sizes, purpose="donors"
        )
        others = draw_without_replacement(
            view,
            among[~view.public[among]],
            view.cohort_size - donors.size,
            weights=sizes,
            purpose="others",
        )
        return np.concatenate([donors, others])

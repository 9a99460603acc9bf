# SPDX-License-Identifier: Apache-2.0
"""What a plan with fixed cohorts would know here, and an adaptive one leaves to the training.

They stand where other plans have a selection and a schedule: what is known is given, and what is
not known before training says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dpcohort._validate import FloatArray, IntArray
from dpcohort.errors import InputError

__all__ = ["UndecidedSchedule", "UndecidedSelection"]


@dataclass(frozen=True, kw_only=True, eq=False)
class UndecidedSelection:
    """A rule that decides during the training.

    Attributes:
        rule: its name.
        settings: its settings.
        unbiased: p^u, proportional to the sizes.
    """

    rule: str
    settings: Mapping[str, object]
    unbiased: FloatArray

    @property
    def probabilities(self) -> FloatArray:
        """Refused: there are none before the training."""
        raise InputError.because(
            f"the rule {self.rule} decides in each round, so there are no probabilities of being "
            "drawn. What needs them (the aggregation importance-compensated, the figure of "
            "probabilities) goes with planned rules only."
        )

    @property
    def bias(self) -> float:
        """Not known before the training: NaN."""
        return math.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class UndecidedSchedule:
    """Cohorts that are chosen on the way.

    Attributes:
        counts: draws of each client at most, its cap.
        rounds: T^g.
        cohort_size: N^select.
    """

    counts: IntArray
    rounds: int
    cohort_size: int

    @property
    def clients(self) -> int:
        """Number of clients in the population."""
        return int(self.counts.size)

    @property
    def cohorts(self) -> IntArray:
        """Refused: they are in the ledger of a run."""
        raise InputError.because(
            "the cohorts of an adaptive plan are chosen round by round; they are in the run's "
            "ledger."
        )

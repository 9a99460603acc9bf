# SPDX-License-Identifier: Apache-2.0
"""What an aggregation rule is: noisy updates of a cohort in, one update out.

A rule sees what the server sees: updates that already carry their noise, and public facts about
the draws. Whatever it computes is post-processing and costs no privacy.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from dpcohort.aggregation.cohort import Cohort

__all__ = ["AggregationRule"]


class AggregationRule(Protocol):
    """Combines the updates of one round."""

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """One update [D] from the updates [draws, D] of the cohort's draws, in their order.

        The updates are the engine's memory: a rule that wants to keep some must copy them.
        """
        ...

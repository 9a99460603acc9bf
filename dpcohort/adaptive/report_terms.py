# SPDX-License-Identifier: Apache-2.0
"""What a report is: one number about a client's records, bounded before it is noised.

A report is the mean over a client's records of a statistic g that lies in [0, t]. It is released
as::

    t/2 + (Σ_i (g_i − t/2) + z t/2 ξ) / n,        ξ ~ N(0, 1),

with the public n (or the public batch size B where only a mini-batch is looked at). Each centred
term lies in [−t/2, t/2], so the sum is a one-dimensional clipped sum with clip t/2: a null record
moves it by at most t/2 (zero-out), another record by at most t (replace-one), exactly as a clipped
gradient moves a sum by C or 2C. A report therefore is an ordinary accounting event with noise
multiplier z, rate 1 for all records or r for a mini-batch, and the contract's own pairs apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dpcohort._validate import choice, number

__all__ = ["ReportMode", "ReportTerms", "Statistic"]

Statistic = Literal["loss", "squared-loss"]
ReportMode = Literal["private", "raw"]


@dataclass(frozen=True, kw_only=True)
class ReportTerms:
    """What clients are asked for, and on which terms.

    Attributes:
        statistic: ``loss`` of a record, or ``squared-loss``.
        loss_bound: b, to which each record's loss is clipped.
        mini_batch: look at one batch of the contract's sampler instead of at all records.
        mode: ``private`` reports are noised and charged; ``raw`` ones are neither, and whatever
            uses them is NOT PRIVATE.
        share: of the budget (of µ² of a Gaussian mechanism with the client's epsilon and delta)
            that all reports of a client together may take; 0 for raw reports.

    Example:
        >>> ReportTerms(statistic="squared-loss", loss_bound=3.0).top
        9.0
    """

    statistic: Statistic = "loss"
    loss_bound: float = 5.0
    mini_batch: bool = False
    mode: ReportMode = "private"
    share: float = 0.1

    def __post_init__(self) -> None:
        choice("statistic", self.statistic, get_args(Statistic))
        choice("reports", self.mode, get_args(ReportMode))
        object.__setattr__(self, "loss_bound", number("loss_bound", self.loss_bound, above=0))
        if self.mode == "private":
            share = number("report_share", self.share, above=0, below=1)
        else:
            share = 0.0
        object.__setattr__(self, "share", share)

    @property
    def top(self) -> float:
        """t, the largest value of the statistic."""
        return self.loss_bound if self.statistic == "loss" else self.loss_bound**2

    @property
    def half_range(self) -> float:
        """Half of t, the clip of the centred statistic."""
        return self.top / 2

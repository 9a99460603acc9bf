# SPDX-License-Identifier: Apache-2.0
"""What an adaptive rule is: whom to ask before a round, and whom to draw from the answers.

A rule holds its settings and nothing else. It has no memory of its own: all it may know is in the
view, so a run that goes on after a crash, and a verification that repeats the choices, come to the
same cohorts. Its class says which statistic it wants reported; that is how it is charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from dpcohort._validate import IntArray
from dpcohort.adaptive.report_terms import Statistic
from dpcohort.adaptive.view import RoundView

__all__ = ["AdaptiveRule"]


@runtime_checkable
class AdaptiveRule(Protocol):
    """Chooses each round's cohort from what clients reported.

    Example:
        >>> import numpy as np
        >>> class Loudest:  # the largest reported loss among all who may be asked
        ...     name, statistic, mini_batch, watches_updates = "loudest", "loss", False, False
        ...     def check(self, clients, cohort_size, public): pass
        ...     def expected_reports(self, clients, rounds, draw_cap): return rounds
        ...     def ask(self, view): return view.can_report
        ...     def choose(self, view, answers):
        ...         return np.array(sorted(answers, key=answers.get)[-view.cohort_size:])
        >>> isinstance(Loudest(), AdaptiveRule)
        True
    """

    @property
    def name(self) -> str:
        """What configurations and receipts call it."""
        ...

    @property
    def statistic(self) -> Statistic | None:
        """What it asks clients for; None if it never asks."""
        ...

    @property
    def mini_batch(self) -> bool:
        """Whether a report looks at one mini-batch instead of at all records."""
        ...

    @property
    def watches_updates(self) -> bool:
        """Whether it looks at the noised updates of earlier rounds."""
        ...

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Refuse settings that do not fit the population, before anything is planned."""
        ...

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """How many reports to allow each client if no cap is given."""
        ...

    def ask(self, view: RoundView) -> IntArray:
        """Positions of the clients to be asked, each below its cap on reports."""
        ...

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Positions of the clients to be drawn, distinct candidates, at most a cohort.

        Args:
            view: the same as ``ask`` got.
            answers: the noisy reports of those who were asked, by position.
        """
        ...

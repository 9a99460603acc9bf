# SPDX-License-Identifier: Apache-2.0
"""A plan as engines read it, whose cohorts appear in the book round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.contract import Contract
from dpcohort.adaptive.book import Book
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.training import Training

__all__ = ["LivePlan", "LiveSchedule"]


@dataclass(frozen=True, eq=False)
class LiveSchedule:
    """The cohorts chosen so far; one that is not chosen yet cannot be read.

    An engine that prepares a round ahead meets an error here and asks again when its time has
    come.
    """

    book: Book

    @property
    def cohorts(self) -> IntArray:
        """Itself: it is read like an array of cohorts, one row at a time."""
        return cast(IntArray, self)

    def __getitem__(self, round: int) -> IntArray:
        found = self.book.cohort(round)
        if found is None:
            raise InputError.because(
                f"the cohort of round {round} is not chosen yet: clients report first."
            )
        return found


@dataclass(frozen=True, eq=False)
class LivePlan:
    """What an engine needs of an adaptive plan, and the book in which cohorts appear."""

    plan: AdaptivePlan
    book: Book

    @property
    def training(self) -> Training:
        """Rounds, cohort size, local steps and clip."""
        return self.plan.training

    @property
    def schedule(self) -> LiveSchedule:
        """The cohorts chosen so far."""
        return LiveSchedule(self.book)

    @property
    def contract(self) -> Contract:
        """The sampler in force."""
        return self.plan.contract

    @property
    def population(self) -> Population:
        """The clients."""
        return self.plan.population

    @property
    def noise_multipliers(self) -> FloatArray:
        """z_k of each client."""
        return self.plan.noise_multipliers

    @property
    def batch_sizes(self) -> IntArray:
        """B_k of each client."""
        return self.plan.batch_sizes

    @property
    def sampling_rates(self) -> FloatArray:
        """r_k of each client."""
        return np.asarray(self.plan.sampling_rates)

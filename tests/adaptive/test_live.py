# SPDX-License-Identifier: Apache-2.0
"""Live plans: a cohort that is not chosen cannot be trained."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.adaptive.book import Book
from dpcohort.adaptive.live import LivePlan
from dpcohort.engine import Experiment, StackedEngine, Streams
from dpcohort.engine.planned import cohort_of
from dpcohort.errors import InputError


def test_a_cohort_appears_when_it_is_chosen(plan_of):
    plan = plan_of()
    book = Book(plan)
    live = LivePlan(plan, book)
    with pytest.raises(InputError, match="round 0 is not chosen yet"):
        cohort_of(live, 0)
    book.choose(0, np.array([3, 3]))
    cohort = cohort_of(live, 0)
    assert cohort.clients.tolist() == [3, 3]
    assert cohort.draws.tolist() == [0, 1]
    assert cohort.noise_multipliers == pytest.approx(plan.noise_multipliers[[3, 3]])


def test_an_engine_that_looks_ahead_waits_for_the_choice(plan_of, model, records_of):
    """On an accelerator the next round is prepared during this one, before it is chosen."""
    plan = plan_of()
    book = Book(plan)
    book.choose(0, np.array([3, 4]))
    streams = Streams.seeded(0)
    experiment = Experiment(plan=LivePlan(plan, book), records=records_of(), streams=streams)
    engine = StackedEngine(model, [experiment])
    assert engine._upcoming(0) is not None
    assert engine._upcoming(1) is None
    book.choose(1, np.array([1, 2]))
    assert engine._upcoming(1)[0].clients.tolist() == [1, 2]

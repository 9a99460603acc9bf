# SPDX-License-Identifier: Apache-2.0
"""Donated data: public clients have their share of every cohort."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort import Population
from dpcohort.adaptive import AdaptiveSession, adaptive_rounds
from dpcohort.adaptive.rules import DonatedData
from dpcohort.engine import BatchedEngine, Streams
from dpcohort.errors import InputError

PUBLIC = np.array([False] * 6 + [True] * 2)


@pytest.mark.parametrize(("share", "donors"), [(0.01, 1), (0.5, 2), (0.9, 2)])
def test_public_clients_get_their_share(view_of, share, donors):
    view = view_of([10] * 8, public=PUBLIC, cohort_size=4)
    chosen = DonatedData(public_share=share).choose(view, {})
    assert PUBLIC[chosen].sum() == donors
    assert chosen.size == 4


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_is_between_zero_and_one(share):
    with pytest.raises(InputError, match="public_share"):
        DonatedData(public_share=share)


def test_a_training_with_donated_data(plan_of, model, records_of):
    budgets = np.where(PUBLIC, np.nan, 2.0)
    mixed = Population.from_arrays(
        sizes=[30] * 8, epsilon=budgets, delta=np.where(PUBLIC, np.nan, 1e-5), public=PUBLIC
    )
    plan = plan_of("donated", population=mixed, rule_settings={"public_share": 0.5})
    session = AdaptiveSession(plan, model, records_of(), streams=Streams.seeded(0))
    engine = BatchedEngine(session.plan, model, records_of(), streams=Streams.seeded(0))
    state = engine.initial_state()
    for _ in adaptive_rounds(engine, [state], [session]):
        pass
    assert session.book.draws[PUBLIC].sum() == 6
    assert (session.spent_epsilon()[~PUBLIC] <= 2.0).all()
    assert np.isnan(session.spent_epsilon()[PUBLIC]).all()

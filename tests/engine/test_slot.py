# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from dpcohort.engine.planned import cohort_of
from dpcohort.engine.slot import Slot


def test_draws_of_one_client_have_names_of_their_own(make_plan: Any) -> None:
    cohort = cohort_of(make_plan([6, 7], [[1, 0, 1]]), 0)
    slots = [Slot(0, cohort, position) for position in range(3)]
    assert [slot.client for slot in slots] == [1, 0, 1]
    names = [tuple(sorted(slot.name.items())) for slot in slots]
    assert len(set(names)) == 3
    assert slots[2].name == {"round": 0, "client": 1, "draw": 1}

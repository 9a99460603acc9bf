# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest
import torch

from dpcohort.engine.lanes import Lanes


def test_slots_add_in_their_order_whoever_comes_first() -> None:
    """1e16 + 1 is 1e16: in another order the sum would have other bits."""
    values = [1e16, 1.0, 1.0, -1e16, 1.0, 1.0]
    lanes = Lanes(torch.full((2, 1), float("nan"), dtype=torch.float64), slots=6)

    def add(number: int) -> None:
        with lanes.turn(number) as turn:
            turn.row().add_(values[number])

    threads = [threading.Thread(target=add, args=(i,)) for i in reversed(range(6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lanes.rows.tolist() == [[1e16 + 1.0 + 1.0], [1.0 - 1e16 + 1.0]]


def test_a_slot_that_adds_nothing_clears_its_lane_and_keeps_the_order() -> None:
    lanes = Lanes(torch.full((1, 2), 7.0), slots=2)
    with lanes.turn(0):
        pass
    with lanes.turn(1) as turn:
        turn.row().add_(1.0)
    assert lanes.rows.tolist() == [[1.0, 1.0]]


def test_gradients_may_be_computed_before_the_turn_comes() -> None:
    lanes = Lanes(torch.empty(1, 1), slots=2)
    computed, added = threading.Event(), []

    def second() -> None:
        with lanes.turn(1) as turn:
            computed.set()
            turn.row().add_(2.0)
            added.append(1)

    later = threading.Thread(target=second)
    later.start()
    assert computed.wait(10)
    assert added == []
    with lanes.turn(0) as turn:
        turn.row().add_(1.0)
    later.join()
    assert lanes.rows.item() == 3.0


def test_an_error_leaves_nobody_waiting() -> None:
    lanes = Lanes(torch.empty(1, 1), slots=2)
    with pytest.raises(ValueError, match="broken"), lanes.turn(0):
        raise ValueError("broken")
    with lanes.turn(1) as turn:
        turn.row()

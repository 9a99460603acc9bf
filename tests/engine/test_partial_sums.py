# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from dpcohort.engine.batched import PartialSum, one_thread_each


def test_passes_add_in_their_order_whoever_comes_first() -> None:
    """1e16 + 1 is 1e16: in another order the sum would have other bits."""
    values = [1e16, 1.0, 1.0, -1e16]
    total = PartialSum(torch.full((1, 1), float("nan"), dtype=torch.float64))

    def add(turn: Any, value: float) -> None:
        with turn as row:
            row().add_(value)

    turns = [total.next_turn() for _ in values]
    threads = [threading.Thread(target=add, args=pair) for pair in zip(turns, values, strict=True)]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert total.row.tolist() == [[0.0]]


def test_a_pass_that_adds_nothing_clears_its_sum_and_keeps_the_order() -> None:
    total = PartialSum(torch.full((1, 2), 7.0))
    first, second = total.next_turn(), total.next_turn()
    with first:
        pass
    with second as row:
        row().add_(1.0)
    assert total.row.tolist() == [[1.0, 1.0]]


def test_gradients_may_be_computed_before_the_turn_comes() -> None:
    total = PartialSum(torch.empty(1, 1))
    first, second = total.next_turn(), total.next_turn()
    computed, added = threading.Event(), []

    def come_early() -> None:
        with second as row:
            computed.set()
            row().add_(2.0)
            added.append(1)

    later = threading.Thread(target=come_early)
    later.start()
    assert computed.wait(10)
    assert added == []
    with first as row:
        row().add_(1.0)
    later.join()
    assert total.row.item() == 3.0


def test_an_error_leaves_nobody_waiting() -> None:
    total = PartialSum(torch.empty(1, 1))
    first, second = total.next_turn(), total.next_turn()
    with pytest.raises(ValueError, match="broken"), first:
        raise ValueError("broken")
    with second as row:
        row()


def test_threads_are_given_back() -> None:
    torch.set_num_threads(2)
    with one_thread_each():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2

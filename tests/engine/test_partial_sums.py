# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest
import torch

from dpcohort.engine.batched import (
    PARTIAL_SUMS,
    PartialSums,
    joined,
    one_thread_each,
)


def test_passes_add_in_their_order_whoever_comes_first() -> None:
    """1e16 + 1 is 1e16: in another order the sum would have other bits."""
    values = [1e16, 1.0, 1.0, -1e16, 1.0, 1.0]
    sums = PartialSums(torch.full((2, 1), float("nan"), dtype=torch.float64), passes=6)

    def add(number: int) -> None:
        with sums.turn(number) as row:
            row().add_(values[number])

    threads = [threading.Thread(target=add, args=(i,)) for i in reversed(range(6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums.rows.tolist() == [[1e16 + 1.0 + 1.0], [1.0 - 1e16 + 1.0]]


def test_a_pass_that_adds_nothing_clears_its_sum_and_keeps_the_order() -> None:
    sums = PartialSums(torch.full((1, 2), 7.0), passes=2)
    with sums.turn(0):
        pass
    with sums.turn(1) as row:
        row().add_(1.0)
    assert sums.rows.tolist() == [[1.0, 1.0]]


def test_gradients_may_be_computed_before_the_turn_comes() -> None:
    sums = PartialSums(torch.empty(1, 1), passes=2)
    computed, added = threading.Event(), []

    def second() -> None:
        with sums.turn(1) as row:
            computed.set()
            row().add_(2.0)
            added.append(1)

    later = threading.Thread(target=second)
    later.start()
    assert computed.wait(10)
    assert added == []
    with sums.turn(0) as row:
        row().add_(1.0)
    later.join()
    assert sums.rows.item() == 3.0


def test_an_error_leaves_nobody_waiting() -> None:
    sums = PartialSums(torch.empty(1, 1), passes=2)
    with pytest.raises(ValueError, match="broken"), sums.turn(0):
        raise ValueError("broken")
    with sums.turn(1) as row:
        row()


@pytest.mark.parametrize("draws", [1, 4, 5, 17, 100])
@pytest.mark.parametrize("size", [1, 700])
def test_every_draw_is_in_one_pass_in_order(draws: int, size: int) -> None:
    passes = joined([size] * draws)
    assert [draw for each in passes for draw in each] == list(range(draws))
    assert len(passes) >= min(draws, PARTIAL_SUMS)  # every partial sum is begun by somebody
    lengths = {len(each) for each in passes}
    assert max(lengths) - min(lengths) <= 1  # alike, so that workers are done together


def test_passes_do_not_outgrow_the_cache() -> None:
    assert all(100 * len(each) <= 600 for each in joined([100] * 100))
    assert all(len(each) == 1 for each in joined([5_000] * 12))


def test_nobody_is_no_pass() -> None:
    assert joined([]) == []


def test_threads_are_given_back() -> None:
    torch.set_num_threads(2)
    with one_thread_each():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2

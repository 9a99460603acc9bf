# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch

from dpcohort.engine._batched import turns_to_add_to


def test_passes_add_in_their_order_whoever_comes_first() -> None:
    """1e16 + 1 is 1e16: in another order the sum would have other bits."""
    values = [1e16, 1.0, 1.0, -1e16]
    total = torch.full((1, 1), float("nan"), dtype=torch.float64)

    def add(turn: Any, value: float) -> None:
        with turn as row:
            row().add_(value)

    turns = list(itertools.islice(turns_to_add_to(total), len(values)))
    threads = [threading.Thread(target=add, args=pair) for pair in zip(turns, values, strict=True)]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert total.tolist() == [[0.0]]


def test_a_pass_that_adds_nothing_clears_its_sum_and_keeps_the_order() -> None:
    total = torch.full((1, 2), 7.0)
    first, second = itertools.islice(turns_to_add_to(total), 2)
    with first:
        pass
    with second as row:
        row().add_(1.0)
    assert total.tolist() == [[1.0, 1.0]]


def test_an_error_leaves_nobody_waiting() -> None:
    total = torch.empty(1, 1)
    first, second = itertools.islice(turns_to_add_to(total), 2)
    with pytest.raises(ValueError, match="broken"), first:
        raise ValueError("broken")
    with second as row:
        row()

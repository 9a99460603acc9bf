# SPDX-License-Identifier: Apache-2.0
"""How many threads torch uses: one for each worker, so that sums add up in one order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread_each", "use_one_thread"]


def use_one_thread() -> None:
    """What a worker does first: all it computes stays on its own thread."""
    torch.set_num_threads(1)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep torch to one thread meanwhile: sums then add up in one order, whatever the machine.

    Example:
        >>> with one_thread_each():
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

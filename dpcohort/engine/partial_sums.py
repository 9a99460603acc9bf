# SPDX-License-Identifier: Apache-2.0
"""Sums that have the same bits on every machine, whoever adds when and with how many threads.

Floating-point sums depend on their order. Torch is therefore kept to one thread for each worker,
and where only the sum of all draws counts they are added to a few partial sums: pass i of an
experiment adds to partial sum i modulo their number, and to one of them the passes add in the order
of their numbers: 0, 4, 8, ...; 1, 5, 9, ...; and so on. At the end the partial sums are added in
their order. None of that depends on the number of workers or on who is faster. A worker waits only
if the pass before it at the same partial sum is not done, which, with four of them and workers that
take passes in order, is rare; and it waits when it has its gradients and not before.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["PARTIAL_SUMS", "PartialSums", "joined", "one_thread_each", "use_one_thread"]

#: Few, because each is cleared and added up once a round; several, because workers differ in speed.
PARTIAL_SUMS = 4
#: Examples of a joined pass, about: more would no longer stay in a core's cache.
_EXAMPLES = 512


class PartialSums:
    """The accumulators of one experiment in one round.

    Passes must be started in the order of their numbers: the first that is not done then never
    waits for another.

    Args:
        rows: [sums, D], one row a partial sum; what is in them does not matter.
        passes: how many will add.

    Example:
        >>> sums = PartialSums(torch.empty(2, 1), passes=3)
        >>> for number in range(3):
        ...     with sums.turn(number) as row:
        ...         _ = row().add_(number + 1)
        >>> sums.rows.tolist()
        [[4.0], [2.0]]
    """

    def __init__(self, rows: Tensor, *, passes: int) -> None:
        self.rows = rows
        self._done = [threading.Event() for _ in range(passes)]

    @contextmanager
    def turn(self, number: int) -> Iterator[Callable[[], Tensor]]:
        """What pass ``number`` does; the next one at its partial sum may add afterwards.

        It is given a function for the row [1, D] to add to, which waits, when first called, until
        all earlier passes at that row are done.
        """
        count = len(self.rows)
        row = self.rows[number % count : number % count + 1]
        has_come = False

        def when_due() -> Tensor:
            nonlocal has_come
            if not has_come:
                has_come = True
                if number < count:  # the first at this row
                    row.zero_()
                else:
                    self._done[number - count].wait()
            return row

        try:
            yield when_due
            when_due()  # a pass that added nothing keeps its place in the order all the same
        finally:  # also after an error, or others would wait for ever
            self._done[number].set()


def joined(batch_sizes: Sequence[int]) -> list[range]:
    """Which draws share a pass where only their sum counts: at least one pass a partial sum.

    Draws that start from the same weights, take one step and are only added up need no sums of
    their own: the examples of several draws go through a pass as one batch, each clipped by itself
    and weighted by its own draw's alpha / B. Larger products and fewer operations an example. How
    draws are joined depends on the cohort alone, not on the number of workers, so every bit of the
    result stays the same on any machine.

    Args:
        batch_sizes: public (expected) batch size of each draw.

    Returns:
        The draws of each pass, in order.

    Example:
        >>> joined([128] * 10)
        [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
        >>> joined([128] * 2)
        [range(0, 1), range(1, 2)]
    """
    draws = len(batch_sizes)
    passes = min(draws, max(PARTIAL_SUMS, math.ceil(sum(batch_sizes) / _EXAMPLES)))
    each, more = divmod(draws, max(1, passes))
    ends = [number * each + min(number, more) for number in range(passes + 1)]
    return [range(start, end) for start, end in itertools.pairwise(ends)]


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

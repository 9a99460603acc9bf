# SPDX-License-Identifier: Apache-2.0
"""Sums of many draws in a few accumulators, with the same bits whoever adds when.

Floating-point sums depend on their order. Slot i of an experiment therefore adds to lane i modulo
the number of lanes, and within a lane the slots add in the order of their numbers: 0, 4, 8, ...;
1, 5, 9, ...; and so on. At the end the lanes are added in their order. None of that depends on the
number of workers or on who is faster. A worker waits only if the slot before it in its lane is not
done, which, with four lanes and workers that take slots in order, is rare; and it waits when it has
its gradients and not before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

__all__ = ["LANES", "Lanes"]

#: Few, because each is cleared and added up once a round; several, because workers differ in speed.
LANES = 4


class Lanes:
    """The accumulators of one experiment in one round.

    Slots must be started in the order of their numbers: the first that is not done then never
    waits for another.

    Args:
        rows: [lanes, D], one row a lane; what is in them does not matter.
        slots: how many will add.

    Example:
        >>> import torch
        >>> lanes = Lanes(torch.empty(2, 1), slots=3)
        >>> for number in range(3):
        ...     with lanes.turn(number) as turn:
        ...         _ = turn.row().add_(number + 1)
        >>> lanes.rows.tolist()
        [[4.0], [2.0]]
    """

    def __init__(self, rows: Tensor, *, slots: int) -> None:
        self.rows = rows
        self._done = [threading.Event() for _ in range(slots)]

    @contextmanager
    def turn(self, number: int) -> Iterator[Turn]:
        """What slot ``number`` does; the next one of its lane may add afterwards."""
        turn = Turn(self, number)
        try:
            yield turn
            turn.row()  # a slot that added nothing keeps its place in the order all the same
        finally:  # also after an error, or others would wait for ever
            self._done[number].set()

    def wait_for(self, number: int) -> None:
        """Wait until slot ``number`` is done."""
        self._done[number].wait()


class Turn:
    """The place of one slot in the order of its lane."""

    def __init__(self, lanes: Lanes, number: int) -> None:
        self._lanes, self._number, self._has_come = lanes, number, False

    def row(self) -> Tensor:
        """The lane's accumulator [1, D], as soon as all earlier slots of the lane are done."""
        lane = self._number % self._lanes.rows.shape[0]
        row = self._lanes.rows[lane : lane + 1]
        if not self._has_come:
            self._has_come = True
            if self._number == lane:  # the first of its lane
                row.zero_()
            else:
                self._lanes.wait_for(self._number - self._lanes.rows.shape[0])
        return row

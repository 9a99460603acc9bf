# SPDX-License-Identifier: Apache-2.0
"""What may listen to a training: it is told public records only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from dpcohort.round_record import RoundRecord
    from dpcohort.runs.run import Run

__all__ = ["Callback"]


@runtime_checkable
class Callback(Protocol):
    """Anything with ``on_round``; it is called after each round was written down.

    Example:
        >>> class Printer:
        ...     def on_round(self, record, run):
        ...         print(record.round)
        >>> isinstance(Printer(), Callback)
        True
    """

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Look at a round; raising an error stops the training after its last whole round."""
        ...

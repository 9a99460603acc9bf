# SPDX-License-Identifier: Apache-2.0
"""How long work tells how far it is: it calls a function with what, how many done, of how many."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "silent"]

#: Called with the name of the work, the items done and the items in all.
Progress = Callable[[str, int, int], None]


def silent(work: str, done: int, total: int) -> None:
    """Progress for nobody.

    Example:
        >>> silent("certifying", 1, 10)
    """

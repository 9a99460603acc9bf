# SPDX-License-Identifier: Apache-2.0
"""Which draws share a pass where only the sum of all draws counts.

Draws that start from the same weights, take one step and are only added up need no sums of their
own: the examples of several draws go through a pass as one batch, each clipped by itself and
weighted by its own draw's alpha / B. Larger products and fewer operations an example.

How draws are joined depends on the cohort alone, not on the number of workers: the order of
additions, and with it every bit of the result, stays the same on any machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from dpcohort.engine.lanes import LANES

__all__ = ["joined"]

#: Examples of a joined pass, about: more would no longer stay in a core's cache.
_EXAMPLES = 512


def joined(batch_sizes: Sequence[int]) -> list[range]:
    """The draws of each pass, in order: one pass a lane, or more if they would grow too large.

    Args:
        batch_sizes: public (expected) batch size of each draw.

    Example:
        >>> joined([128] * 10)
        [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
        >>> joined([128] * 2)
        [range(0, 1), range(1, 2)]
    """
    draws = len(batch_sizes)
    passes = min(draws, max(LANES, math.ceil(sum(batch_sizes) / _EXAMPLES)))
    each, more = divmod(draws, max(1, passes))
    ends = [number * each + min(number, more) for number in range(passes + 1)]
    return [range(start, end) for start, end in itertools.pairwise(ends)]

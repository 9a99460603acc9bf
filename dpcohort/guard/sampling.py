# SPDX-License-Identifier: Apache-2.0
"""Which records one step uses, from the operating system's entropy, at most as likely as promised.

As in :mod:`dpcohort.engine.sampling`, with no rounding to the server's advantage: a record is used
with probability floor(2^64 r) / 2^64 ≤ r, and a batch of fixed size is uniform, for keys that tie
are drawn again.
"""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np

from dpcohort._validate import IntArray, choice, number, whole_number
from dpcohort.guard.lattice_noise import Bytes

__all__ = ["draw_batch"]


def draw_batch(
    sampler: str, *, records: int, rate: float, batch_size: int, source: Bytes = os.urandom
) -> IntArray:
    """Positions of the records of one step, in increasing order. SENSITIVE.

    Args:
        sampler: ``poisson`` or ``fixed``.
        records: |M|.
        rate: r, for ``poisson``.
        batch_size: B, for ``fixed``.
        source: where random bytes come from; anything but the operating system is for tests.

    Example:
        >>> draw_batch("fixed", records=5, rate=0.6, batch_size=3).size
        3
    """
    choice("sampler", sampler, ["poisson", "fixed"])
    number("rate", rate, above=0, at_most=1)
    whole_number("batch_size", batch_size, at_least=1, at_most=records)
    if sampler == "fixed":
        return _subset(records, batch_size, source)
    threshold = int(Fraction(rate) * 2**64)
    if threshold == 2**64:
        return np.arange(records, dtype=np.int64)
    words = np.frombuffer(source(8 * records), dtype="<u8")
    return np.flatnonzero(words < np.uint64(threshold)).astype(np.int64)


def _subset(records: int, batch_size: int, source: Bytes) -> IntArray:
    while True:
        keys = np.frombuffer(source(8 * records), dtype="<u8")
        if np.unique(keys).size == records:
            return np.sort(np.argsort(keys)[:batch_size]).astype(np.int64)

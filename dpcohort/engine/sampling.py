# SPDX-License-Identifier: Apache-2.0
"""Local batches, drawn the way the accountant was told (Algorithm 1, line 13).

``poisson``: each record is in the batch independently with probability r. The batch has any size
from nothing to everything; it is never cut, so no overflow has to be accounted for. ``fixed``: B
distinct records, every subset equally likely. In both the sum of clipped gradients is later
divided by the public B, never by the number of records that happened to come.

Private batches are drawn exactly (``draw_batch``), with no rounding to anybody's advantage: a
record is used with probability floor(2^64 r) / 2^64 ≤ r, and a batch of fixed size is uniform, for
keys that tie are drawn again. Batches of a simulation keep a form that rounds r up by at most
2^-53.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpcohort._validate import BoolArray, IntArray, choice, number, whole_number
from dpcohort.engine.lattice_noise import Bytes
from dpcohort.engine.randomness import Streams, WordArray
from dpcohort.errors import InputError

__all__ = ["Batches", "draw_batch", "draw_positions", "pad_batches"]

_WORD_TO_UNIT = 2.0**-53  # a float64 holds 53 of a word's 64 bits


def draw_positions(
    streams: Streams,
    sampler: str,
    *,
    size: int,
    rate: float,
    batch_size: int,
    round: int,
    client: int,
    draw: int,
    step: int,
) -> IntArray:
    """Positions, in increasing order, of the records one draw uses in one local step.

    Args:
        streams: where the random bits come from.
        sampler: ``poisson`` or ``fixed``.
        size: number of the client's records, |M_k|.
        rate: probability that a record is used, r_k (``poisson``).
        batch_size: number of records used, B (``fixed``).
        round: global round t^g.
        client: position of the client in the population.
        draw: which of the client's draws in this round.
        step: local step t^l.

    Example:
        >>> draw_positions(Streams.seeded(0), "fixed", size=5, rate=0.6, batch_size=3,
        ...                round=0, client=0, draw=0, step=0).size
        3
    """
    if not streams.is_reproducible:
        return draw_batch(
            sampler, records=size, rate=rate, batch_size=batch_size, source=streams.source
        )
    choice("sampler", sampler, ["poisson", "fixed"])
    words = streams.words("batch", size, round=round, client=client, draw=draw, step=step)
    if sampler == "poisson":
        return _independent(words, rate)
    return _without_replacement(words, batch_size)


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


def _independent(words: WordArray, rate: float) -> IntArray:
    if not 0 <= rate <= 1:
        raise InputError("rate", given=rate, allowed="a number from 0 to 1")
    # u < r with u uniform on multiples of 2^-53: true with probability r, rounded up to 2^-53.
    uniform = (words >> np.uint64(11)).astype(np.float64) * _WORD_TO_UNIT
    return np.flatnonzero(uniform < rate).astype(np.int64)


def _without_replacement(words: WordArray, batch_size: int) -> IntArray:
    if not 1 <= batch_size <= words.size:
        raise InputError(
            "batch_size",
            given=batch_size,
            allowed=f"a whole number from 1 to the client's size {words.size}",
        )
    # The B smallest of n independent keys are a uniform subset (ties: below n^2 2^-65).
    chosen = np.argpartition(words, batch_size - 1)[:batch_size]
    return np.sort(chosen).astype(np.int64)


@dataclass(frozen=True)
class Batches:
    """Batches of several draws as one rectangle.

    Attributes:
        positions: [draws, width]; beyond a draw's own records, 0.
        mask: [draws, width]; true where a record really belongs to the batch.
    """

    positions: IntArray
    mask: BoolArray


def pad_batches(batches: Sequence[IntArray], *, multiple: int = 1) -> Batches:
    """Batches side by side, padded to the longest: the width grows, a batch is never cut.

    Args:
        batches: record positions of each draw.
        multiple: the width is rounded up to a multiple of this, so that devices that tune
            themselves to shapes see few of them.

    Example:
        >>> padded = pad_batches([np.array([4, 7]), np.array([], dtype=np.int64)])
        >>> padded.positions.tolist(), padded.mask.tolist()
        ([[4, 7], [0, 0]], [[True, True], [False, False]])
    """
    longest = max((batch.size for batch in batches), default=0)
    width = -(-longest // multiple) * multiple
    positions = np.zeros((len(batches), width), dtype=np.int64)
    mask = np.zeros((len(batches), width), dtype=np.bool_)
    for row, batch in enumerate(batches):
        positions[row, : batch.size] = batch
        mask[row, : batch.size] = True
    return Batches(positions=positions, mask=mask)

# SPDX-License-Identifier: Apache-2.0
"""Gaussian noise as integers, drawn exactly: no float takes part.

The law is that of ``round(2^e Z)`` with Z standard normal. Added to an integer x it gives
``round(x + 2^e Z)``, for rounding commutes with adding an integer: the output is the continuous
Gaussian mechanism, rounded. Rounding looks at no data, so it is post-processing, and whatever is
proved of the continuous mechanism with noise 2^e holds for the integers as it stands. On the
lattice every x has the same possible outputs, so no output is off it (the precision attack of
Mironov, 2012, has nothing to see).

What is left is to draw ``round(2^e Z)`` right. Karney (2016, arXiv 1303.6257) draws Z = ±(k + x)
by comparing uniform numbers only: k ≥ 0 with probability in proportion to e^(-k²/2), x uniform in
[0, 1), kept with probability e^(-kx - x²/2). A coin of probability e^(-x) is the parity of the
length of a run x > u1 > u2 > ... of uniform numbers (von Neumann); for e^(-x²/2) each step of the
run must also pass a coin of x/2.

**How exact.** A uniform number is 64 bits and a tail never looked at: where two of them agree in
64 bits, a fair coin says which tail is the smaller, as it would. That is wrong only if a tail is
asked about twice, so only if one coordinate meets two such ties. Each comparison has a fresh word
in it and ties with probability 2^-64, whatever came before; with C comparisons for a coordinate,
two ties have probability at most E[C²] 2^-129. A run of length n or more has probability at most
1/n! and takes two comparisons a step, an attempt has k + 1 runs and succeeds with probability 0.71:
E[C²] < 2^10. The table of k is exact to 2^-124. So a coordinate is within 2^-118 of its law in
total variation; :data:`TOTAL_VARIATION` = 2^-109 leaves room. D coordinates in n steps then raise
a δ by at most (1 + e^ε) D n 2^-109, which the guard adds to what it certifies
(:func:`delta_of_sampling`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, IntArray, whole_number

__all__ = ["LARGEST_EXPONENT", "TOTAL_VARIATION", "delta_of_sampling", "rounded_gaussian"]

#: Distance of one drawn coordinate from the exact law.
TOTAL_VARIATION = 2.0**-109
#: Largest e: k + x then still has its rounded digit within 64 bits, and a sum fits 64 bits.
LARGEST_EXPONENT = 48

#: Gives so many random bytes; ``os.urandom`` in all but tests.
Bytes = Callable[[int], bytes]
Words = NDArray[np.uint64]

_LARGEST_WHOLE = 14  # k = 14 has probability 2^-142; larger ones are below the table's 2^-128
_BLOCK = 1 << 16  # coordinates at a time: the words of a block stay in the cache


def rounded_gaussian(count: int, exponent: int, source: Bytes = os.urandom) -> IntArray:
    """So many independent draws of ``round(2^exponent Z)``, Z standard normal.

    Args:
        count: how many.
        exponent: e; the standard deviation is 2^e.
        source: where random bytes come from; anything but the operating system is for tests.

    Example:
        >>> noise = rounded_gaussian(1000, 20)
        >>> bool(0.8 < noise.std() / 2**20 < 1.2)
        True
    """
    whole_number("exponent", exponent, at_least=0, at_most=LARGEST_EXPONENT)
    noise = np.empty(whole_number("count", count, at_least=0), dtype=np.int64)
    for start in range(0, count, _BLOCK):
        block = noise[start : start + _BLOCK]
        missing = np.arange(block.size)
        while missing.size:
            values, kept = _attempt(missing.size, exponent, source)
            block[missing[kept]] = values[kept]
            missing = missing[~kept]
    return noise


def delta_of_sampling(epsilon: float, coordinates: int, steps: int) -> float:
    """How much δ grows because the noise is drawn within 2^-109 of its law and not at it.

    If each of two laws is within t of its ideal in total variation and the ideals keep (ε, δ), the
    two keep (ε, δ + (1 + e^ε) t); distances of independent coordinates and steps add up.

    Example:
        >>> delta_of_sampling(8.0, 26_010, 1000) < 1e-21
        True
    """
    return (1 + math.exp(min(epsilon, 700.0))) * coordinates * steps * TOTAL_VARIATION


def _attempt(count: int, exponent: int, source: Bytes) -> tuple[IntArray, BoolArray]:
    """One try for each coordinate: values, and which of them are kept."""
    whole = _whole_part(count, source)
    words = _words(2 * count, source)
    fraction, signs = words[:count], words[count:] & np.uint64(1)
    kept = _half_square_coin(fraction, source)
    # k coins of e^-x, each only for coordinates that are still in.
    for coins in range(1, int(whole.max(initial=0)) + 1):
        asked = np.flatnonzero(kept & (whole >= coins))
        kept[asked] = _exponential_coin(fraction[asked], source)
    # floor(2 * 2^e x), then to the nearest: a digit of x, never a rounding of it.
    doubled = (fraction >> np.uint64(63 - exponent)).astype(np.int64)
    size = (whole << exponent) + ((doubled + 1) >> 1)
    return np.where(signs == 1, -size, size), kept


def _whole_part(count: int, source: Bytes) -> IntArray:
    """Draw k with probability in proportion to e^(-k²/2)."""
    high, low = _thresholds()
    words = _words(count, source)
    found = np.searchsorted(high, words, side="right").astype(np.int64)
    tied = np.flatnonzero(np.isin(words, high))
    for place in tied:  # the first 64 bits do not decide: 64 more do
        more = int.from_bytes(source(8), "little")
        value = (int(words[place]) << 64) | more
        bounds = [(int(h) << 64) | lo for h, lo in zip(high, low, strict=True)]
        found[place] = sum(value >= bound for bound in bounds)
    return found


@lru_cache(maxsize=1)
def _thresholds() -> tuple[Words, tuple[int, ...]]:
    """P(k ≤ 0), P(k ≤ 1), ... as 128-bit fractions: the high words, and the low ones."""
    with localcontext() as context:
        context.prec = 80
        weights = [(Decimal(-k * k) / 2).exp() for k in range(40)]
        total, running, bounds = sum(weights), Decimal(0), []
        for weight in weights[:_LARGEST_WHOLE]:
            running += weight
            bounds.append(int(running / total * 2**128))
    high = np.array([bound >> 64 for bound in bounds], dtype=np.uint64)
    return high, tuple(bound & (2**64 - 1) for bound in bounds)


def _exponential_coin(x: Words, source: Bytes) -> BoolArray:
    """True with probability e^-x."""
    return _even_run(x, source, halved=False)


def _half_square_coin(x: Words, source: Bytes) -> BoolArray:
    """True with probability e^(-x²/2)."""
    return _even_run(x, source, halved=True)


def _even_run(x: Words, source: Bytes, *, halved: bool) -> BoolArray:
    """Whether a run x > u1 > u2 > ... is of even length; P(length ≥ n) = p^n x^n / n!.

    p is 1, or x/2 if ``halved``: then a step also has to pass a coin of x/2. Summing with
    alternating signs, an even length has probability e^(-p x).
    """
    even = np.ones(x.size, dtype=np.bool_)
    running = np.arange(x.size)
    top = x
    while running.size:
        following = _words(running.size, source)
        goes_on = _less(following, top, source)
        if halved:
            asked = np.flatnonzero(goes_on)
            goes_on[asked] = _half_coin(x[running[asked]], source)
        running, top = running[goes_on], following[goes_on]
        even[running] ^= True
    return even


def _half_coin(x: Words, source: Bytes) -> BoolArray:
    """True with probability x/2: a fair coin, and a uniform number below x."""
    words = _words(x.size, source)
    # The top bit is the coin; the tail of the number below it is fresh where 63 bits tie.
    below = _less(words << np.uint64(1) | _low_bits(x.size, source), x, source)
    heads: BoolArray = words < np.uint64(1 << 63)
    return below & heads


def _low_bits(count: int, source: Bytes) -> Words:
    packed = np.frombuffer(source(-(-count // 8)), dtype=np.uint8)
    return np.unpackbits(packed)[:count].astype(np.uint64)


def _less(left: Words, right: Words, source: Bytes) -> BoolArray:
    """Whether left < right, as numbers with endless digits of which 64 are known."""
    smaller = left < right
    tied = np.flatnonzero(left == right)
    if tied.size:
        smaller[tied] = _low_bits(tied.size, source) == 1
    return smaller


def _words(count: int, source: Bytes) -> Words:
    return np.frombuffer(source(8 * count), dtype="<u8").astype(np.uint64, copy=False)

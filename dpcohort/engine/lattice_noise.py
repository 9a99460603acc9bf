# SPDX-License-Identifier: Apache-2.0
"""Private noise: the Gaussian law rounded to integers, from a ChaCha20 stream, drawn exactly.

The law is that of ``round(2^e Z)`` with Z standard normal. Added to an integer x it gives
``round(x + 2^e Z)``, for rounding commutes with adding an integer: the output is the continuous
Gaussian mechanism, rounded. Rounding looks at no data, so it is post-processing, and whatever is
proved of the continuous mechanism with noise 2^e holds for the integers as it stands. On the
lattice every x has the same possible outputs, so no output is off it (the precision attack of
Mironov, 2012, has nothing to see).

**Bits.** A key of 256 bits from the operating system, used once, and its ChaCha20 stream as words
of 64 bits. Coordinates come in spans of 2048: coordinates i and 1024 + i of a span are

    2^e sqrt(-2 ln u) cos(2 pi v)    and    2^e sqrt(-2 ln u) sin(2 pi v),    rounded,

where u in (0, 1) begins with the bits of word i of the span, and v in [-1/2, 1/2) with those of
word 1024 + i (Box and Muller). Another 128 bits of both are there when they are needed, in a second
stream of the same key. Nobody who does not know the key can tell the stream from coin tosses, let
alone solve for its state; a generator made for simulation gives its state away through any few
thousand coordinates whose gradient is known to be zero.

**Exactness.** Numbers are computed in float64 from the leading 52 bits of u and v, with a bound on
how far the exact number may be away: the bits left out move it by at most 2^-51 / (u r) (through
the radius r) and 2^-50 r (through the angle), and the rounding of log, sqrt, sin, cos and of the
products, each within 4 units in the last place, by less than 2^-48 r. Where rounding to an integer
could come out otherwise within 2^-47 r + 2^-50 / (u r), for one coordinate in two million at e = 24
and for all of the far tail, the integer is computed again with all 192 bits of u and v in 320 bits
precision. What comes out is therefore the same integer on every machine, on a CPU and on a GPU:
the rounding of an exact function of the key. :func:`exact_coordinate` is that function, slow and
obvious.

u and v are multiples of 2^-192. Replacing them by real numbers that begin with the same bits moves
a coordinate across a rounding boundary with probability at most 2^(e-192) (13 + 2 pi E[r]), two
of them for each coordinate: below 2^(e-186). So a coordinate is within :data:`TOTAL_VARIATION`
= 2^-130 of its law for every e up to 48, and D coordinates in n steps raise a δ by at most
(1 + e^ε) D n 2^-130, which is added to what is certified (:func:`delta_of_sampling`). The law ends
at 16.3 standard deviations, where it has probability 2^-192.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import mpmath
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from dpcohort._validate import IntArray, whole_number
from dpcohort.engine import lattice_noise_kernel

__all__ = [
    "KEY_BYTES",
    "LARGEST_EXPONENT",
    "TOTAL_VARIATION",
    "Bytes",
    "add_rounded_gaussian_",
    "delta_of_sampling",
    "exact_coordinate",
    "rounded_gaussian",
]

#: Distance of one drawn coordinate from the exact law.
TOTAL_VARIATION = 2.0**-130
#: Largest e: a sum with its noise then fits 64 bits.
LARGEST_EXPONENT = 48
#: Length of a key.
KEY_BYTES = 32

#: Gives so many random bytes; ``os.urandom`` in all but tests.
Bytes = Callable[[int], bytes]

_HALF = 1024  # pairs of a span
_SPAN = 2 * _HALF
_AT_A_TIME = 32 * _SPAN  # coordinates at a time on a CPU: what is computed of them stays in a cache
_ZEROS = bytes(8 * _AT_A_TIME)
_MORE_BITS = 1  # names the stream of further bits
_PRECISION = 320


def rounded_gaussian(count: int, exponent: int, source: Bytes = os.urandom) -> IntArray:
    """So many independent draws of ``round(2^exponent Z)``, Z standard normal.

    Args:
        count: how many.
        exponent: e; the standard deviation is 2^e.
        source: where the key comes from; anything but the operating system is for tests.

    Example:
        >>> noise = rounded_gaussian(1000, 20)
        >>> bool(0.8 < noise.std() / 2**20 < 1.2)
        True
    """
    total = torch.zeros(whole_number("count", count, at_least=0), dtype=torch.int64)
    drawn: IntArray = add_rounded_gaussian_(total, exponent, source(KEY_BYTES)).numpy()
    return drawn


def add_rounded_gaussian_(total: Tensor, exponent: int, key: bytes) -> Tensor:
    """Add ``round(2^exponent Z)``, independent in every coordinate, to integers.

    Args:
        total: [D] int64, on a CPU or a GPU; changed in place.
        exponent: e; the standard deviation is 2^e.
        key: 32 random bytes that are used for nothing else, ever.

    Returns:
        ``total``.

    Example:
        >>> total = add_rounded_gaussian_(torch.zeros(5, dtype=torch.int64), 20, bytes(32))
        >>> [int(n) for n in total] == [exact_coordinate(i, 20, bytes(32)) for i in range(5)]
        True
    """
    whole_number("exponent", exponent, at_least=0, at_most=LARGEST_EXPONENT)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    if total.is_cuda:
        return _add_on_gpu_(total, exponent, key)
    for start in range(0, total.numel(), _AT_A_TIME):
        part = total[start : start + _AT_A_TIME]
        noise, doubtful = _nearly_exact(start, part.numel(), exponent, key)
        for position in doubtful:
            noise[position] = exact_coordinate(start + position, exponent, key)
        part += noise
    return total


def exact_coordinate(position: int, exponent: int, key: bytes) -> int:
    """One coordinate of the noise of a key, in exact arithmetic: what all other code must give.

    Args:
        position: which coordinate.
        exponent: e; the standard deviation is 2^e.
        key: 32 bytes.

    Example:
        >>> abs(exact_coordinate(3, 24, bytes(32))) < 20 * 2**24
        True
    """
    span, place = divmod(position, _SPAN)
    pair = place % _HALF
    u, v = (_word(key, span * _SPAN + pair + half) for half in (0, _HALF))
    more = np.frombuffer(_stream(key, span * _HALF + pair, 32, _MORE_BITS), dtype="<u8").tolist()
    u, v = (u << 128) | (more[0] << 64) | more[1], (v << 128) | (more[2] << 64) | more[3]
    if v >= 1 << 191:
        v -= 1 << 192
    with mpmath.workprec(_PRECISION):
        # The middle of what 192 bits leave open.
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(2 * u + 1) / 2**193))
        angle = mpmath.pi * (2 * v + 1) / 2**192
        turn = mpmath.cos(angle) if place < _HALF else mpmath.sin(angle)
        return int(mpmath.floor(radius * turn * 2**exponent + 0.5))


def delta_of_sampling(epsilon: float, coordinates: int, steps: int) -> float:
    """How much δ grows because the noise is drawn within 2^-130 of its law and not at it.

    If each of two laws is within t of its ideal in total variation and the ideals keep (ε, δ), the
    two keep (ε, δ + (1 + e^ε) t); distances of independent coordinates and steps add up.

    Example:
        >>> delta_of_sampling(8.0, 26_010, 1000) < 1e-28
        True
    """
    return (1 + math.exp(min(epsilon, 700.0))) * coordinates * steps * TOTAL_VARIATION


def _nearly_exact(start: int, count: int, exponent: int, key: bytes) -> tuple[Tensor, list[int]]:
    """Noise of the coordinates from ``start`` on, right in all places but the doubtful ones."""
    spans = -(-count // _SPAN)
    raw = np.frombuffer(_stream(key, start // 8, 8 * spans * _SPAN), dtype="<u8")
    words = raw.astype(np.uint64, copy=False).reshape(spans, 2, _HALF)
    u = (words[:, 0] >> np.uint64(12)).view(np.int64).astype(np.float64)
    u += 0.5
    u *= 2.0**-52
    angle = torch.from_numpy((words[:, 1].view(np.int64) >> 12).astype(np.float64))
    angle.add_(0.5).mul_(2.0**-51 * math.pi)
    radius = np.log(u)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    # 1/2 - 2^e (2^-47 r + 2^-50 / (u r)): farther than this from the integer is too near the next.
    u *= radius
    sure = torch.from_numpy(u).reciprocal_().mul_(-(2.0 ** (exponent - 50)))
    length = torch.from_numpy(radius)
    sure.add_(length, alpha=-(2.0 ** (exponent - 47))).add_(0.5)
    length.mul_(2.0**exponent)
    noise = torch.empty(spans, 2, _HALF, dtype=torch.int64)
    doubtful: list[int] = []
    for half, turned in enumerate((angle.cos(), angle.sin_())):
        turned.mul_(length)
        nearest = turned.round()
        noise[:, half] = nearest
        gap = turned.sub_(nearest).abs_().sub_(sure)
        if float(gap.max()) >= 0.0:
            where = (gap >= 0.0).nonzero().tolist()
            doubtful += [_SPAN * span + _HALF * half + pair for span, pair in where]
    return noise.view(-1)[:count], [position for position in doubtful if position < count]


def _add_on_gpu_(total: Tensor, exponent: int, key: bytes) -> Tensor:
    doubtful = lattice_noise_kernel.add_(total, exponent, key)
    if doubtful is None:  # no kernel for this machine: the same integers, made on the host
        noise = torch.zeros(total.numel(), dtype=torch.int64)
        return total.add_(add_rounded_gaussian_(noise, exponent, key).to(total.device))
    if doubtful:
        exact = [exact_coordinate(position, exponent, key) for position in doubtful]
        places = torch.tensor(doubtful, device=total.device)
        total.index_add_(0, places, torch.tensor(exact, device=total.device))
    return total


def _stream(key: bytes, block: int, size: int, name: int = 0) -> bytes:
    """Bytes of the ChaCha20 stream of a key, from a block on."""
    nonce = block.to_bytes(8, "little") + name.to_bytes(8, "little")
    cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None)
    return cipher.encryptor().update(memoryview(_ZEROS)[:size])


def _word(key: bytes, number: int) -> int:
    """A word of the stream."""
    return int(np.frombuffer(_stream(key, number // 8, 64), dtype="<u8")[number % 8])

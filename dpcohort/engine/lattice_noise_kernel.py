# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel behind ``lattice_noise.release``; absent where Triton is.

It makes the very integers of ``lattice_noise``: ChaCha20, Box and Muller's transform in float64,
rounding to 64-bit integers. Coordinates that float64 cannot decide are listed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from triton.language.extra import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        libdevice,
    )
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

__all__ = ["AVAILABLE", "BLOCKS", "SPAN", "release"]

#: Blocks of a span, and its coordinates; see ``lattice_noise``.
BLOCKS = 128
SPAN = 10 * BLOCKS
_LISTED = 1 << 14  # doubtful spans that fit the list
_REGISTERS = 64  # more would leave too few programs to a processor


def release(
    out: Tensor,
    totals: Tensor,
    exponents: Sequence[int],
    keys: Sequence[bytes],
    factors: Sequence[float],
) -> list[tuple[int, int]] | None:
    """Write ``factor (total + noise)`` of each row of ``totals`` [rows, D] to ``out``.

    Returns:
        Rows and spans that hold doubtful coordinates and are to be written again; None, and
        nothing was written, where there is no kernel or they are many.
    """
    if not AVAILABLE or not totals.is_contiguous() or not out.is_contiguous():
        return None
    rows, count = totals.shape
    expected = count * sum(2.0 ** (exponent - 43) for exponent in exponents)
    if expected > _LISTED / 4:
        return None
    told = np.empty((rows, 12), dtype=np.int32)
    told[:, :8] = np.frombuffer(b"".join(keys), dtype="<i4").reshape(rows, 8)
    told[:, 8:10] = np.ldexp(1.0, np.array(exponents))[:, None].view(np.int32)
    told[:, 10:] = np.array(factors, dtype=np.float64)[:, None].view(np.int32)
    there = torch.from_numpy(told).pin_memory().to(totals.device, non_blocking=True)
    doubtful = torch.empty(1 + _LISTED, dtype=torch.int64, device=totals.device)
    doubtful[:1].zero_()
    spans = -(-count // SPAN)
    _kernel[(spans, rows)](
        out, totals, there, doubtful, count, _LISTED, BLOCKS=BLOCKS, maxnreg=_REGISTERS
    )
    found = int(doubtful[0])
    if found > _LISTED:  # what was written must not be used
        raise RuntimeError("more doubtful coordinates than there can be: the GPU computes wrongly")
    return sorted({divmod(place, spans) for place in doubtful[1 : 1 + found].tolist()})


if AVAILABLE:

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _quarter(a, b, c, d):  # type: ignore[no-untyped-def]
        a = a + b
        d = d ^ a
        d = (d << 16) | (d >> 16)
        c = c + d
        b = b ^ c
        b = (b << 12) | (b >> 20)
        a = a + b
        d = d ^ a
        d = (d << 8) | (d >> 24)
        c = c + d
        b = b ^ c
        b = (b << 7) | (b >> 25)
        return a, b, c, d

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _stream(key, block):  # type: ignore[no-untyped-def]
        """The words of each of these blocks of the ChaCha20 stream."""
        zero = (block * 0).to(tl.uint32)
        k0 = zero + tl.load(key).to(tl.uint32, bitcast=True)
        k1 = zero + tl.load(key + 1).to(tl.uint32, bitcast=True)
        k2 = zero + tl.load(key + 2).to(tl.uint32, bitcast=True)
        k3 = zero + tl.load(key + 3).to(tl.uint32, bitcast=True)
        k4 = zero + tl.load(key + 4).to(tl.uint32, bitcast=True)
        k5 = zero + tl.load(key + 5).to(tl.uint32, bitcast=True)
        k6 = zero + tl.load(key + 6).to(tl.uint32, bitcast=True)
        k7 = zero + tl.load(key + 7).to(tl.uint32, bitcast=True)
        low = (block & 0xFFFFFFFF).to(tl.uint32)
        high = (block >> 32).to(tl.uint32)
        x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
        x4, x5, x6, x7 = k0, k1, k2, k3
        x8, x9, x10, x11 = k4, k5, k6, k7
        x12, x13, x14, x15 = low, high, zero, zero
        for _ in range(10):
            x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
            x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
            x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
            x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
            x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
            x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
            x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
            x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
        return (
            x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, x3 + 0x6B206574,
            x4 + k0, x5 + k1, x6 + k2, x7 + k3, x8 + k4, x9 + k5, x10 + k6, x11 + k7,
            x12 + low, x13 + high, x14, x15,
        )  # fmt: skip

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _write(out, total, place, rest, factor, exact, gate, slope, least):  # type: ignore[no-untyped-def]
        """Write one coordinate of each lane; true where it is in doubt."""
        # Beside 1.5 2^52 a float64 has no digits behind the point, and its bits count in ones: up
        # to 2^51, more than any noise of an exponent up to 40.
        beside = exact + 6755399441055744.0
        nearest = beside.to(tl.int64, bitcast=True) - 0x4338000000000000
        gap = 0.5 - tl.abs(exact - (beside - 6755399441055744.0)).to(tl.float32)
        value = tl.load(total + place, mask=place < rest, other=0)
        noisy = factor * (value + nearest).to(tl.float64)
        tl.store(out + place, noisy.to(out.dtype.element_ty), mask=place < rest)
        return (gap - slope) * gate <= least

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _unit(first, half, three):  # type: ignore[no-untyped-def]
        """51 bits behind the point of a number from 1 to 2."""
        low = (half << 3) | (three & 7)
        bits = (first.to(tl.uint64) << 20) | (low << 1).to(tl.uint64) | 0x3FF0000000000000
        return bits.to(tl.float64, bitcast=True)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pair(out, total, place, rest, factor, a, b, c, three, scale, HALF: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        """Two coordinates of each lane, half a span apart; true where one is in doubt."""
        u = _unit(a, c >> 16, three) - 0.9999999999999998  # less 1, and half of 2^-51 more
        v = 2.0 * _unit(b, c & 0xFFFF, three >> 3) - 1.9999999999999996
        radius = tl.sqrt(-2.0 * tl.log(u))
        # As in ``lattice_noise``: closer than 2^e (2^-47 r + 2^-49 / (u r)) to a half is in doubt.
        size = scale.to(tl.float32)
        gate = u.to(tl.float32) * radius.to(tl.float32)
        slope = size * 7.105427357601002e-15 * radius.to(tl.float32)
        least = size * 1.7763568394002505e-15
        length = scale * radius
        along, across = length * libdevice.cospi(v), length * libdevice.sinpi(v)
        one = _write(out, total, place, rest, factor, along, gate, slope, least)
        two = _write(out, total, place + HALF, rest, factor, across, gate, slope, least)
        return one | two

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _kernel(  # type: ignore[no-untyped-def]
        out, totals, told, doubtful, count, listed,
        BLOCKS: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """A program makes a span of a row: its first half cosines, its second their sines."""
        span, row = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
        key = told + 12 * row
        scale = tl.load((key + 8).to(tl.pointer_type(tl.float64)))
        factor = tl.load((key + 10).to(tl.pointer_type(tl.float64)))
        start = span * (10 * BLOCKS)
        out += row * count + start
        total = totals + (row * count + start)
        rest = tl.minimum(count - start, 10 * BLOCKS).to(tl.int32)
        lane = tl.arange(0, BLOCKS)
        a0, b0, c0, a1, b1, c1, a2, b2, c2, a3, b3, c3, a4, b4, c4, d = _stream(
            key, span * BLOCKS + lane
        )
        half: tl.constexpr = 5 * BLOCKS
        doubt = _pair(out, total, lane, rest, factor, a0, b0, c0, d, scale, half)
        doubt |= _pair(out, total, lane + BLOCKS, rest, factor, a1, b1, c1, d >> 6, scale, half)
        doubt |= _pair(
            out, total, lane + 2 * BLOCKS, rest, factor, a2, b2, c2, d >> 12, scale, half
        )
        doubt |= _pair(
            out, total, lane + 3 * BLOCKS, rest, factor, a3, b3, c3, d >> 18, scale, half
        )
        doubt |= _pair(
            out, total, lane + 4 * BLOCKS, rest, factor, a4, b4, c4, d >> 24, scale, half
        )
        one = tl.full([BLOCKS], 1, tl.int64)
        place = tl.atomic_add(doubtful + tl.zeros([BLOCKS], tl.int64), one, mask=doubt)
        where = row * tl.num_programs(0) + span
        tl.store(doubtful + 1 + place, where, mask=doubt & (place < listed))

# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel behind ``lattice_noise.add_rounded_gaussian_``; absent where Triton is.

It makes the very integers of ``lattice_noise``: ChaCha20, Box and Muller's transform in float64,
rounding to 64-bit integers. Coordinates that float64 cannot decide are left alone and listed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

__all__ = ["AVAILABLE", "add_"]

_SPAN = 2048  # as in ``lattice_noise``: words of u, then words of v
_LISTED = 1 << 16  # doubtful coordinates that fit the list


def add_(total: Tensor, exponent: int, key: bytes) -> list[int] | None:
    """Add the noise of a key to ``total`` [D] in place, but for a few doubtful coordinates.

    Returns:
        Their positions; None, and nothing was added, where there is no kernel or they are many.
    """
    if not AVAILABLE:
        return None
    count = total.numel()
    expected = count * 2.0 ** (exponent - 43)
    if not total.is_contiguous() or expected > _LISTED / 4:
        return None
    words = torch.from_numpy(np.frombuffer(key, dtype="<i4").astype(np.int32)).to(total.device)
    doubtful = torch.zeros(1 + _LISTED, dtype=torch.int64, device=total.device)
    _kernel[(-(-count // _SPAN),)](
        total, words, doubtful, count, _LISTED, 2.0**exponent, BLOCKS=_SPAN // 16
    )
    found = int(doubtful[0])
    if found > _LISTED:  # not seen in 2^100 draws; what was added must not be used
        raise RuntimeError("more doubtful coordinates than can be; the GPU computes wrongly")
    listed: list[int] = doubtful[1 : 1 + found].tolist()
    return listed


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
    def _word(low, high):  # type: ignore[no-untyped-def]
        return low.to(tl.uint64) | (high.to(tl.uint64) << 32)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pair(first, second, scale):  # type: ignore[no-untyped-def]
        """Two coordinates, the smallest integer in the place of one that is in doubt."""
        u = ((first >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
        v = (second.to(tl.int64, bitcast=True) >> 12).to(tl.float64) + 0.5
        angle = v * 1.3951473992034527e-15  # pi 2^-51
        radius = tl.sqrt(-2.0 * tl.log(u))
        # As in ``lattice_noise``: 1/2 - 2^e (2^-47 r + 2^-50 / (u r)).
        sure = 0.5 - scale * (7.105427357601002e-15 * radius + 8.881784197001252e-16 / (u * radius))
        along = scale * radius * tl.cos(angle)
        across = scale * radius * tl.sin(angle)
        one = tl.floor(along + 0.5)
        two = tl.floor(across + 0.5)
        doubt = -9223372036854775808
        one_is_sure = tl.abs(along - one) < sure
        two_is_sure = tl.abs(across - two) < sure
        return (
            tl.where(one_is_sure, one.to(tl.int64), doubt),
            tl.where(two_is_sure, two.to(tl.int64), doubt),
        )

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _stream(key, block):  # type: ignore[no-untyped-def]
        """Eight words of each of these blocks of the ChaCha20 stream."""
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
            _word(x0 + 0x61707865, x1 + 0x3320646E),
            _word(x2 + 0x79622D32, x3 + 0x6B206574),
            _word(x4 + k0, x5 + k1),
            _word(x6 + k2, x7 + k3),
            _word(x8 + k4, x9 + k5),
            _word(x10 + k6, x11 + k7),
            _word(x12 + low, x13 + high),
            _word(x14, x15),
        )

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _in_line(n0, n1, n2, n3, n4, n5, n6, n7, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        """Eight numbers of each block one after the other: a join adds the next lower bit."""
        even = tl.join(tl.join(n0, n4), tl.join(n2, n6))
        odd = tl.join(tl.join(n1, n5), tl.join(n3, n7))
        return tl.reshape(tl.join(even, odd), [SIZE])

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _add(total, doubtful, noise, entry, count, listed, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        doubt = (entry < count) & (noise == -9223372036854775808)
        plain = (entry < count) & (noise != -9223372036854775808)
        value = tl.load(total + entry, mask=plain, other=0)
        tl.store(total + entry, value + noise, mask=plain)
        if tl.sum(doubt.to(tl.int32), axis=0) > 0:
            one = tl.full([SIZE], 1, tl.int64)
            place = tl.atomic_add(doubtful + tl.zeros([SIZE], tl.int64), one, mask=doubt)
            tl.store(doubtful + 1 + place, entry, mask=doubt & (place < listed))

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _kernel(  # type: ignore[no-untyped-def]
        total, key, doubtful, count, listed, scale,
        BLOCKS: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """A program makes a span: its first half are cosines, its second the sines beside them."""
        first = tl.program_id(0).to(tl.int64) * (2 * BLOCKS)
        block = first + tl.arange(0, BLOCKS)
        u0, u1, u2, u3, u4, u5, u6, u7 = _stream(key, block)
        v0, v1, v2, v3, v4, v5, v6, v7 = _stream(key, block + BLOCKS)
        c0, s0 = _pair(u0, v0, scale)
        c1, s1 = _pair(u1, v1, scale)
        c2, s2 = _pair(u2, v2, scale)
        c3, s3 = _pair(u3, v3, scale)
        c4, s4 = _pair(u4, v4, scale)
        c5, s5 = _pair(u5, v5, scale)
        c6, s6 = _pair(u6, v6, scale)
        c7, s7 = _pair(u7, v7, scale)
        cosines = _in_line(c0, c1, c2, c3, c4, c5, c6, c7, 8 * BLOCKS)
        sines = _in_line(s0, s1, s2, s3, s4, s5, s6, s7, 8 * BLOCKS)
        entry = 8 * first + tl.arange(0, 8 * BLOCKS)
        _add(total, doubtful, cosines, entry, count, listed, 8 * BLOCKS)
        _add(total, doubtful, sines, entry + 8 * BLOCKS, count, listed, 8 * BLOCKS)

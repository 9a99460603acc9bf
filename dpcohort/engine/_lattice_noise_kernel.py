# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel behind ``lattice.release``; absent where Triton is.

It makes the very integers of ``lattice``: ChaCha20, Box and Muller's transform in float64,
rounding to 64-bit integers. Blocks with a coordinate that float64 cannot decide are listed, and a
second kernel computes theirs again from 99 bits of u and v with pairs of float64, which hold about
104 bits; what even that does not decide, one coordinate in 2^60 or so, is left to the host.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

import mpmath
import torch
from torch import Tensor

from dpcohort.engine._counter_noise import AVAILABLE as AVAILABLE

#: Blocks of a span, and its coordinates; see ``lattice``.
BLOCKS = 128
SPAN = 10 * BLOCKS
_LISTED = 1 << 10  # doubtful blocks that fit the list
_LANES = 32  # doubtful blocks of a program of the second kernel
_LOG, _SINE, _COSINE = 22, 14, 15  # terms of the series of the second kernel
_REGISTERS = 64  # more would leave too few programs to a processor


def release(
    out: Tensor,
    totals: Tensor,
    exponents: Sequence[int],
    keys: Sequence[bytes],
    factors: Sequence[float],
    meanwhile: Callable[[], None] = lambda: None,
) -> list[tuple[int, int]] | None:
    """Write ``factor (total + noise)`` of each row of ``totals`` [rows, D] to ``out``.

    ``meanwhile`` is work for the host before it waits for the device.

    Returns:
        Rows and spans that hold undecided coordinates and are to be written again; None, and
        nothing was written, where there is no kernel or too many would be doubtful.
    """
    if not AVAILABLE or not totals.is_contiguous() or not out.is_contiguous():
        return None
    rows, count = totals.shape
    expected = count * sum(2.0 ** (exponent - 43) for exponent in exponents)
    if expected > _LISTED / 4:
        return None
    # Key, 2^e and factor of each row, and two counters: what is doubtful, what is undecided.
    told = bytearray()
    for key, exponent, factor in zip(keys, exponents, factors, strict=True):
        told += key + struct.pack("<dd", 2.0**exponent, factor)
    there = torch.frombuffer(told + bytes(16), dtype=torch.int32).to(
        totals.device, non_blocking=True
    )
    counters = there[12 * rows :].view(torch.int64)
    doubtful = torch.empty(_LISTED, dtype=torch.int64, device=totals.device)
    spans = -(-count // SPAN)
    _kernel[(spans, rows)](
        out,
        totals,
        there,
        counters,
        doubtful,
        count,
        _LISTED,
        BLOCKS=BLOCKS,
        maxnreg=_REGISTERS,
    )
    _again[(_LISTED // _LANES, 10)](
        out, totals, there, counters, doubtful, _constants(totals.device), count, spans, _LISTED,
        BLOCKS=BLOCKS, LANES=_LANES, LOG=_LOG, SINE=_SINE, COSINE=_COSINE,
        # What a product was rounded by must not be recomputed without the rounding.
        enable_fp_fusion=False,
    )  # fmt: skip
    meanwhile()
    found, undecided = counters.tolist()
    if found > _LISTED:  # what was written must not be used
        raise RuntimeError("more doubtful coordinates than there can be: the GPU computes wrongly")
    if undecided == 0:
        return []
    return sorted({divmod(p // BLOCKS, spans) for p in doubtful[:found].tolist()})


@lru_cache(maxsize=4)
def _constants(device: torch.device) -> Tensor:
    """Coefficients of the series, ln 2 and 2 pi, each as two float64 whose sum it is."""
    with mpmath.workprec(300):
        exact = [mpmath.mpf(1) / (2 * i + 1) for i in range(_LOG)]
        exact += [mpmath.mpf((-1) ** i) / math.factorial(2 * i + 1) for i in range(_SINE)]
        exact += [mpmath.mpf((-1) ** i) / math.factorial(2 * i) for i in range(_COSINE)]
        exact += [mpmath.log(2), 2 * mpmath.pi]
        pairs = [(float(x), float(x - mpmath.mpf(float(x)))) for x in exact]
    return torch.tensor(pairs, dtype=torch.float64).view(-1).to(device)


if AVAILABLE:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

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
    def _stream(key, block, name):  # type: ignore[no-untyped-def]
        """The words of each of these blocks of the ChaCha20 stream of this name."""
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
        x12, x13, x14, x15 = low, high, zero + name, zero
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
            x12 + low, x13 + high, x14 + name, x15,
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
        high = (first >> 12) | 0x3FF00000
        low = (first << 20) | (half << 4) | ((three & 7) << 1)
        bits = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
        return bits.to(tl.float64, bitcast=True)

    # The functions of Box and Muller without the cases that cannot occur here. Constants stand by
    # an operator, which makes them float64 (an argument would be float32); the polynomials are
    # nearly the best of their degree, within 2^-55 of the function.

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _radius(u):  # type: ignore[no-untyped-def]
        """The square root of -2 ln u, u in (0, 1), within two units in the last place."""
        bits = u.to(tl.int64, bitcast=True)
        high = (bits >> 32).to(tl.int32)
        power = (high - 0x3FE6A09E) >> 20  # u = m 2^power, m from sqrt(1/2) to sqrt(2)
        m = ((high - (power << 20)).to(tl.int64) << 32) | (bits & 0xFFFFFFFF)
        m = m.to(tl.float64, bitcast=True)
        k = 0x4330000080000000 ^ power.to(tl.uint32, bitcast=True).to(tl.int64)
        k = k.to(tl.float64, bitcast=True) - 4503601774854144.0  # from 2^52 + 2^31 + power
        above, below = m + 1.0, m - 1.0
        inverse = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f64 $0, $1;", "=d,d", [above], dtype=tl.float64, is_pure=True, pack=1
        )
        inverse = tl.fma(inverse, 1.0 - above * inverse, inverse)
        s = below * inverse
        s = tl.fma(tl.fma(-above, s, below), inverse, s)
        z = s * s
        series = z * 0.14616449685043406 + 0.15331721600556042
        series = series * z + 0.18182889125261723
        series = series * z + 0.2222221113479508
        series = series * z + 0.28571428625975487
        series = series * z + 0.39999999999899505
        series = series * z + 0.666666666666667
        x = -2.0 * (k * 0.6931471805599453 + tl.fma(s * z, series, 2.0 * s))
        inverse = tl.inline_asm_elementwise(
            "rsqrt.approx.ftz.f64 $0, $1;", "=d,d", [x], dtype=tl.float64, is_pure=True, pack=1
        )
        root, half = x * inverse, 0.5 * inverse
        rest = 0.5 - root * half
        root, half = tl.fma(root, rest, root), tl.fma(half, rest, half)
        return tl.fma(tl.fma(-root, root, x), half, root)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _turned(length, v):  # type: ignore[no-untyped-def]
        """Length times cos(pi v) and sin(pi v), v in (0, 2): quarters q, and polynomials of r."""
        beside = v * 2.0 + 6755399441055744.0
        q = beside.to(tl.int64, bitcast=True).to(tl.int32)
        r = v - 0.5 * (beside - 6755399441055744.0)
        z = r * r
        sine = z * 0.00046221110224187623 - 0.0073701436435937495
        sine = sine * z + 0.08214587730641625
        sine = sine * z - 0.5992645291845385
        sine = sine * z + 2.5501640398766154
        sine = sine * z - 5.167712780049969
        sine = (sine * z + 3.141592653589793) * r * length
        cosine = z * -0.00010370082971594627 + 0.001929493874894941
        cosine = cosine * z - 0.025806887964701878
        cosine = cosine * z + 0.23533063028399223
        cosine = cosine * z - 1.3352627688538095
        cosine = cosine * z + 4.058712126416765
        cosine = cosine * z - 4.934802200544679
        cosine = (cosine * z + 1.0) * length
        odd = (q & 1) != 0
        along = tl.where(odd, sine, cosine).to(tl.int64, bitcast=True)
        across = tl.where(odd, cosine, sine).to(tl.int64, bitcast=True)
        along ^= ((q + 1) & 2).to(tl.int64) << 62  # the sign
        across ^= (q & 2).to(tl.int64) << 62
        return along.to(tl.float64, bitcast=True), across.to(tl.float64, bitcast=True)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pair(out, total, place, rest, factor, a, b, c, three, scale, HALF: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        """Two coordinates of each lane, half a span apart; true where one is in doubt."""
        u = _unit(a, c >> 16, three) - 0.9999999999999998  # less 1, and half of 2^-51 more
        v = 2.0 * _unit(b, c & 0xFFFF, three >> 3) - 1.9999999999999996
        radius = _radius(u)
        # As in ``lattice``: closer than 2^e (2^-47 r + 2^-49 / (u r)) to a half is in doubt.
        size = scale.to(tl.float32)
        gate = u.to(tl.float32) * radius.to(tl.float32)
        slope = size * 7.105427357601002e-15 * radius.to(tl.float32)
        least = size * 1.7763568394002505e-15
        along, across = _turned(scale * radius, v)
        one = _write(out, total, place, rest, factor, along, gate, slope, least)
        two = _write(out, total, place + HALF, rest, factor, across, gate, slope, least)
        return one | two

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _kernel(  # type: ignore[no-untyped-def]
        out, totals, told, counters, doubtful, count, listed,
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
            key, span * BLOCKS + lane, 0
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
        place = tl.atomic_add(counters + tl.zeros([BLOCKS], tl.int64), one, mask=doubt)
        where = (row * tl.num_programs(0) + span) * BLOCKS + lane
        tl.store(doubtful + place, where, mask=doubt & (place < listed))

    # Numbers as pairs of float64, high and low, whose exact sum they are (Dekker, 1971).

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _sum(a, b):  # type: ignore[no-untyped-def]
        total = a + b
        part = total - a
        return total, (a - (total - part)) + (b - part)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _renewed(high, low):  # type: ignore[no-untyped-def]
        total = high + low
        return total, low - (total - high)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _product(a, b):  # type: ignore[no-untyped-def]
        whole = a * b
        return whole, tl.fma(a, b, -whole)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _plus(a, a_low, b, b_low):  # type: ignore[no-untyped-def]
        high, low = _sum(a, b)
        other, rest = _sum(a_low, b_low)
        high, low = _renewed(high, low + other)
        return _renewed(high, low + rest)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _times(a, a_low, b, b_low):  # type: ignore[no-untyped-def]
        high, low = _product(a, b)
        return _renewed(high, low + (a * b_low + a_low * b))

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _over(a, a_low, b, b_low):  # type: ignore[no-untyped-def]
        first = a / b
        whole, part = _product(first, b)
        rest = (((a - whole) - part) + a_low) - first * b_low
        return _renewed(first, rest / b)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _root(a, a_low):  # type: ignore[no-untyped-def]
        first = tl.sqrt(a)
        whole, part = _product(first, first)
        return _renewed(first, (((a - whole) - part) + a_low) / (2.0 * first))

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _series(x, x_low, constants, TERMS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        """The sum of coefficient i times x^i."""
        high = x * 0.0 + tl.load(constants + 2 * TERMS - 2)
        low = x * 0.0 + tl.load(constants + 2 * TERMS - 1)
        for i in range(2, TERMS + 1):
            high, low = _times(high, low, x, x_low)
            at = constants + 2 * (TERMS - i)
            high, low = _plus(high, low, tl.load(at) + x * 0.0, tl.load(at + 1) + x * 0.0)
        return high, low

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _logarithm(u, u_low, constants, ln2, TERMS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        """Of numbers in (0, 1): 2 artanh((m - 1) / (m + 1)) + k ln 2 with u = m 2^k."""
        bits = u.to(tl.int64, bitcast=True)
        power = (bits >> 52) - 1023
        m = ((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
        m_low = u_low * ((1023 - power) << 52).to(tl.float64, bitcast=True)
        large = m > 1.4142135
        m = tl.where(large, 0.5 * m, m)
        m_low = tl.where(large, 0.5 * m_low, m_low)
        power = tl.where(large, power + 1, power)
        below, below_low = _sum(m - 1.0, m_low)
        above, above_low = _sum(m, 1.0 + m * 0.0)
        above, above_low = _renewed(above, above_low + m_low)
        s, s_low = _over(below, below_low, above, above_low)
        square, square_low = _times(s, s_low, s, s_low)
        found, found_low = _series(square, square_low, constants, TERMS)
        found, found_low = _times(found, found_low, 2.0 * s, 2.0 * s_low)
        k = power.to(tl.float64)
        twos, twos_low = _product(k, k * 0.0 + tl.load(ln2))
        twos, twos_low = _renewed(twos, twos_low + k * tl.load(ln2 + 1))
        return _plus(twos, twos_low, found, found_low)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _one_of(k, w0, w1, w2, w3, w4):  # type: ignore[no-untyped-def]
        found = tl.where(k == 1, w1, w0)
        found = tl.where(k == 2, w2, found)
        found = tl.where(k == 3, w3, found)
        return tl.where(k == 4, w4, found)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _bits(first, half, three, more):  # type: ignore[no-untyped-def]
        """51 bits and 48 more as two float64."""
        whole = (first.to(tl.int64) << 19) | (half.to(tl.int64) << 3) | (three & 7).to(tl.int64)
        high, low = whole.to(tl.float64) * 4.440892098500626e-16, more.to(tl.float64) + 0.5
        return _renewed(high, low * 1.5777218104420236e-30)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _again(  # type: ignore[no-untyped-def]
        out, totals, told, counters, doubtful, constants, count, spans, listed,
        BLOCKS: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
        LOG: tl.constexpr, SINE: tl.constexpr, COSINE: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """A program computes one of the ten coordinates of some listed blocks."""
        found = tl.minimum(tl.load(counters), listed)
        entry = tl.program_id(0) * LANES + tl.arange(0, LANES)
        if tl.program_id(0) * LANES < found:
            is_sine, k = tl.program_id(1) // 5, tl.program_id(1) % 5
            listed_block = tl.load(doubtful + entry, mask=entry < found, other=0)
            lane, place = listed_block % BLOCKS, listed_block // BLOCKS
            row, span = place // spans, place % spans
            key = told + 12 * row
            block = span * BLOCKS + lane
            x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = _stream(
                key, block, 0
            )
            a = _one_of(k, x0, x3, x6, x9, x12)
            b = _one_of(k, x1, x4, x7, x10, x13)
            c = _one_of(k, x2, x5, x8, x11, x14)
            three = x15 >> (6 * k)
            x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = _stream(
                key, 5 * block + k, 1
            )
            more_u = ((x4 & 0xFFFF).to(tl.int64) << 32) | x3.to(tl.int64)
            more_v = (x8.to(tl.int64) << 16) | (x7 >> 16).to(tl.int64)
            u, u_low = _bits(a, c >> 16, three, more_u)
            v, v_low = _bits(b, c & 0xFFFF, three >> 3, more_v)
            sines = constants + 2 * LOG
            cosines = sines + 2 * SINE
            ln2 = cosines + 2 * COSINE
            log, log_low = _logarithm(u, u_low, constants, ln2, LOG)
            radius, radius_low = _root(-2.0 * log, -2.0 * log_low)
            quarter = tl.floor(4.0 * v + 0.5)
            turn, turn_low = _sum(v - 0.25 * quarter, v_low)
            full = turn * 0.0 + tl.load(ln2 + 2)
            angle, angle_low = _times(turn, turn_low, full, turn * 0.0 + tl.load(ln2 + 3))
            square, square_low = _times(angle, angle_low, angle, angle_low)
            sine, sine_low = _series(square, square_low, sines, SINE)
            sine, sine_low = _times(sine, sine_low, angle, angle_low)
            cosine, cosine_low = _series(square, square_low, cosines, COSINE)
            # cos x and sin x = cos(x - a quarter): which of both, and its sign, by the quarter.
            quarters = (quarter.to(tl.int32) + 3 * is_sine) % 4
            odd, negative = quarters % 2 == 1, (quarters == 1) | (quarters == 2)
            wave, wave_low = tl.where(odd, sine, cosine), tl.where(odd, sine_low, cosine_low)
            wave, wave_low = (
                tl.where(negative, -wave, wave),
                tl.where(negative, -wave_low, wave_low),
            )
            scale = tl.load((key + 8).to(tl.pointer_type(tl.float64)))
            factor = tl.load((key + 10).to(tl.pointer_type(tl.float64)))
            exact, exact_low = _times(radius, radius_low, wave, wave_low)
            exact, exact_low = scale * exact, scale * exact_low
            nearest = tl.floor(exact + 0.5)
            off = (exact - nearest) + exact_low
            nearest = tl.where(
                off > 0.5, nearest + 1.0, tl.where(off < -0.5, nearest - 1.0, nearest)
            )
            gap = tl.abs(tl.abs(off) - 0.5)
            # 2^e (2^-88 r + 2^-95 / (u r)).
            doubt = scale * (3.2311742677852644e-27 * radius + 2.524354896707238e-29 / (u * radius))
            decided = gap > doubt
            position = span * (10 * BLOCKS) + is_sine * (5 * BLOCKS) + k * BLOCKS + lane
            inside = (entry < found) & (position < count)
            value = tl.load(totals + row * count + position, mask=inside, other=0)
            noisy = factor * (value + nearest.to(tl.int64)).to(tl.float64)
            tl.store(out + row * count + position, noisy.to(out.dtype.element_ty), mask=inside)
            one = tl.full([LANES], 1, tl.int64)
            aside = counters + 1 + tl.zeros([LANES], tl.int64)
            tl.atomic_add(aside, one, mask=inside & (decided == 0))

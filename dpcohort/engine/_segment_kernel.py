# SPDX-License-Identifier: Apache-2.0
"""Triton kernels that clip rows and add them up by segments; absent where Triton is.

Rows are gradients of single records in parts (``lattice``), segments the draws that they are of.
``squares`` gives the squared norm of every row, ``cut_squares`` that of its integers, and
``sums`` adds up integers, which is exact in any order.

Everything of a row is computed by one program from that row and its factor, in one order, so none
of its bits depends on how many rows there are, where it stands or what is beside it. A number x of
a row gives the integer ``trunc(x f)`` and one g a of an outer product ``trunc((g f) a)``: a fused
product with 2^52, rounded towards zero, cuts the exact product off in one operation. That holds up
to 2^52, which callers see to (:data:`LARGEST_SUM`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpcohort.engine._counter_noise import AVAILABLE as AVAILABLE
from dpcohort.engine.clipping._layers import Part

#: What the integers of a segment may add up to.
LARGEST_SUM = 2.0**52

_LINE = 1024  # numbers of a row that a program looks at together
_TILE = 4096  # numbers of an outer product whose norm is wanted
_HIGH, _WIDE, _AHEAD, _WARPS = 16, 128, 4, 4  # of one that is added up
_ROWS, _COLUMNS = 16, 256  # of rows that are there in full


def fits(parts: Sequence[Part]) -> bool:
    """Whether the kernels take these parts: 32-bit floats on a GPU."""
    first = parts[0][0]
    return AVAILABLE and first.is_cuda and first.dtype == torch.float32


def squares(parts: Sequence[Part]) -> Tensor:
    """Squared norms [rows] in float64, in which no number of 32 bits overflows or vanishes."""
    first = parts[0][0]
    found = torch.zeros(len(first), dtype=torch.float64, device=first.device)
    for part in parts:
        left, right = part[0], part[-1]
        _squares[(len(first),)](
            found, left, right, left.shape[1], right.shape[1], IS_PAIR=len(part) == 2, LINE=_LINE
        )
    return found


def cut_squares(parts: Sequence[Part], factors: Tensor) -> Tensor:
    """Squared norms [rows] of the integers that rows are cut to.

    Args:
        parts: of all rows, contiguous.
        factors: [rows] in float64; a row of factor 0 has no integers.
    """
    found = torch.zeros_like(factors)
    for part in parts:
        left, right = part[0], part[-1]
        _cut_squares[(len(factors),)](
            found, left, right, factors, left.shape[1], right.shape[1],
            IS_PAIR=len(part) == 2, LINE=_LINE, HIGH=_high(left), WIDE=_TILE // _high(left),
        )  # fmt: skip
    return found


def sums(parts: Sequence[Part], factors: Tensor, starts: Tensor, stops: Tensor) -> list[Tensor]:
    """The sum of each part's integers over the rows of each segment, [segments, numbers] int64.

    Args:
        parts: of all rows, contiguous.
        factors: [rows] in float64; a row of factor 0 adds nothing, whatever it holds.
        starts: [segments] the first row of each.
        stops: [segments] the row behind the last of each.
    """
    found = []
    for part in parts:
        length = math.prod(one.shape[1] for one in part)
        out = torch.empty(len(starts), length, dtype=torch.int64, device=factors.device)
        if len(part) == 2:
            high, (m, n) = _high(part[0]), (one.shape[1] for one in part)
            left, right = (one.new_empty(one.shape, dtype=torch.float64) for one in part)
            _scale[(len(factors),)](left, right, *part, factors, m, n, LINE=_LINE)
            _pair_sums[(-(-m // high), -(-n // _WIDE), len(starts))](
                out, left, right, starts, stops, m, n,
                HIGH=high, WIDE=_WIDE, AHEAD=_AHEAD, num_warps=_WARPS,
            )  # fmt: skip
        else:
            _row_sums[(-(-length // _COLUMNS), len(starts))](
                out, part[0], factors, starts, stops, length, ROWS=_ROWS, WIDE=_COLUMNS
            )
        found.append(out)
    return found


def _high(left: Tensor) -> int:
    """Lines of the tiles that an outer product is made in."""
    return min(_HIGH, 1 << (left.shape[1] - 1).bit_length())


if AVAILABLE:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _line_square(line, n, LINE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        total = tl.zeros([LINE], tl.float64)
        for start in range(0, n, LINE):
            at = start + tl.arange(0, LINE)
            x = tl.load(line + at, mask=at < n, other=0.0).to(tl.float64)
            total += x * x
        return tl.sum(total, axis=0)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _squares(  # type: ignore[no-untyped-def]
        found, left, right, m, n, IS_PAIR: tl.constexpr, LINE: tl.constexpr  # noqa: N803
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        square = _line_square(right + row * n, n, LINE)
        if IS_PAIR:
            square *= _line_square(left + row * m, m, LINE)
        tl.store(found + row, tl.load(found + row) + square)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _floor(x, y):  # type: ignore[no-untyped-def]
        """The integer below the exact product of two numbers that are not negative."""
        beside = tl.inline_asm_elementwise(
            "fma.rz.f64 $0, $1, $2, 0d4330000000000000;", "=d,d,d", [x, y],
            dtype=tl.float64, is_pure=True, pack=1,
        )  # fmt: skip
        return beside - 4503599627370496.0

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _signed(size, sign):  # type: ignore[no-untyped-def]
        return (size.to(tl.int64, bitcast=True) ^ sign).to(tl.float64, bitcast=True)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _sign(x):  # type: ignore[no-untyped-def]
        """The bit of the sign, in its place."""
        return (x.to(tl.int64, bitcast=True) >> 63) << 63

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _numbers(line, at, n, factor):  # type: ignore[no-untyped-def]
        """Some numbers of a row in float64; 0 where its factor is, whatever they are."""
        x = tl.load(line + at, mask=at < n, other=0.0).to(tl.float64)
        return tl.where(factor > 0.0, x, 0.0)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _cut_squares(  # type: ignore[no-untyped-def]
        found, left, right, factors, m, n,
        IS_PAIR: tl.constexpr, LINE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        factor = tl.load(factors + row)
        left += row * m
        right += row * n
        if IS_PAIR:
            total = tl.zeros([HIGH, WIDE], tl.float64)
            for across in range(0, n, WIDE):
                column = across + tl.arange(0, WIDE)[None, :]
                a = tl.broadcast_to(tl.abs(_numbers(right, column, n, factor)), [HIGH, WIDE])
                for down in range(0, m, HIGH):
                    line = down + tl.arange(0, HIGH)[:, None]
                    g = tl.abs(_numbers(left, line, m, factor)) * factor
                    size = _floor(tl.broadcast_to(g, [HIGH, WIDE]), a)
                    total += size * size
            square = tl.sum(tl.sum(total, axis=1), axis=0)
        else:
            line = tl.zeros([LINE], tl.float64)
            for start in range(0, n, LINE):
                x = tl.abs(_numbers(right, start + tl.arange(0, LINE), n, factor))
                size = _floor(x, tl.broadcast_to(factor, [LINE]))
                line += size * size
            square = tl.sum(line, axis=0)
        tl.store(found + row, tl.load(found + row) + square)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _scale(  # type: ignore[no-untyped-def]
        scaled, copied, left, right, factors, m, n, LINE: tl.constexpr  # noqa: N803
    ):  # fmt: skip
        """The two sides of a row's outer product, one of them times its factor."""
        row = tl.program_id(0).to(tl.int64)
        factor = tl.load(factors + row)
        for start in range(0, m, LINE):
            at = start + tl.arange(0, LINE)
            g = _numbers(left + row * m, at, m, factor) * factor
            tl.store(scaled + row * m + at, g, mask=at < m)
        for start in range(0, n, LINE):
            at = start + tl.arange(0, LINE)
            a = _numbers(right + row * n, at, n, factor)
            tl.store(copied + row * n + at, a, mask=at < n)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _pair_sums(  # type: ignore[no-untyped-def]
        out, left, right, starts, stops, m, n,
        HIGH: tl.constexpr, WIDE: tl.constexpr, AHEAD: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """A program makes a tile of the sum of a segment's outer products, cut to integers."""
        segment = tl.program_id(2).to(tl.int64)
        down = tl.program_id(0) * HIGH + tl.arange(0, HIGH)[:, None]
        across = tl.program_id(1) * WIDE + tl.arange(0, WIDE)[None, :]
        start, stop = tl.load(starts + segment), tl.load(stops + segment)
        total = tl.zeros([HIGH, WIDE], tl.float64)
        for first in range(start, stop, AHEAD):
            for i in tl.static_range(AHEAD):  # whose numbers are on their way together
                row = first + i
                g = tl.load(left + row * m + down, mask=(down < m) & (row < stop), other=0.0)
                a = tl.load(right + row * n + across, mask=(across < n) & (row < stop), other=0.0)
                size = _floor(
                    tl.broadcast_to(tl.abs(g), [HIGH, WIDE]),
                    tl.broadcast_to(tl.abs(a), [HIGH, WIDE]),
                )
                total += _signed(size, _sign(g) ^ _sign(a))
        where = segment * m * n + down.to(tl.int64) * n + across
        there = (down < m) & (across < n)
        tl.store(out + where, total.to(tl.int64), mask=there)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _row_sums(  # type: ignore[no-untyped-def]
        out, rows, factors, starts, stops, n,
        ROWS: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        """A program makes some columns of the sum of a segment's rows."""
        segment = tl.program_id(1).to(tl.int64)
        column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
        start, stop = tl.load(starts + segment), tl.load(stops + segment)
        total = tl.zeros([ROWS, WIDE], tl.float64)
        for first in range(start, stop, ROWS):
            row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)
            there = (row < stop) & (column < n)[None, :]
            x = tl.load(rows + row * n + column[None, :], mask=there, other=0.0)
            factor = tl.load(factors + row, mask=row < stop, other=0.0)
            x = tl.where(factor > 0.0, x, 0.0).to(tl.float64)
            size = _floor(tl.abs(x), tl.broadcast_to(factor, [ROWS, WIDE]))
            total += _signed(size, _sign(x))
        tl.store(
            out + segment * n + column, tl.sum(total, axis=0).to(tl.int64),
            mask=column < n,
        )  # fmt: skip

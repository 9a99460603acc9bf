# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel behind ``counter_noise.add_noise_``; absent where Triton is."""

from __future__ import annotations

from torch import Tensor

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

__all__ = ["AVAILABLE", "launch"]

_PAIRS_PER_PROGRAM = 256


def launch(
    out: Tensor, sums: Tensor, names: Tensor, scale: Tensor, spread: Tensor, *, accumulate: bool
) -> None:
    """One launch for all draws; see ``counter_noise.add_noise_``."""
    draws, count = out.shape
    blocks = -(-((count + 1) // 2) // _PAIRS_PER_PROGRAM)
    _kernel[(blocks, draws)](
        out, sums, names, scale, spread, count,
        ACCUMULATE=accumulate, PAIRS=_PAIRS_PER_PROGRAM,
    )  # fmt: skip


if AVAILABLE:

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _kernel(  # type: ignore[no-untyped-def]
        out, sums, names, scale, spread, count,
        ACCUMULATE: tl.constexpr, PAIRS: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        draw = tl.program_id(1).to(tl.int64)
        pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
        key = tl.load(names + 2 * draw)
        every = tl.zeros([PAIRS], tl.int64) + tl.load(names + 2 * draw + 1)
        w0, w1, w2, w3 = tl.philox(
            key,
            (pair & 0xFFFFFFFF).to(tl.uint32),
            ((pair >> 32) & 0xFFFFFFFF).to(tl.uint32),
            (every & 0xFFFFFFFF).to(tl.uint32),
            ((every >> 32) & 0xFFFFFFFF).to(tl.uint32),
        )
        # As in ``counter_noise``: (2^32 high + low + 1/2) / 2^64.
        u = w0.to(tl.float64) * 2.3283064365386963e-10
        u += (w1.to(tl.float64) + 0.5) * 5.421010862427522e-20
        v = w2.to(tl.float64) * 2.3283064365386963e-10
        v += (w3.to(tl.float64) + 0.5) * 5.421010862427522e-20
        radius = tl.sqrt(-2.0 * tl.log(u))
        angle = 6.283185307179586 * v
        noise = tl.interleave(radius * tl.cos(angle), radius * tl.sin(angle))
        entry = tl.program_id(0).to(tl.int64) * (2 * PAIRS) + tl.arange(0, 2 * PAIRS)
        inside = entry < count
        where = draw * count + entry
        total = tl.load(sums + where, mask=inside).to(tl.float64)
        value = tl.load(scale + draw) * total + tl.load(spread + draw) * noise
        value = value.to(out.dtype.element_ty)
        if ACCUMULATE:
            value += tl.load(out + where, mask=inside)
        tl.store(out + where, value, mask=inside)

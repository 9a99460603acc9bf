# SPDX-License-Identifier: Apache-2.0
"""Normal noise and batches on an accelerator: all draws of a pass at once, each by its own name.

Every draw has a name of 128 bits, two words of its noise stream. Numbers 2i and 2i + 1 of its noise
are a function of that name and of i alone (Philox-4x32 with ten rounds, keyed by the first word,
counting (i, second word); then Box and Muller's transform), so what else is in the pass, its order
and the device cannot change them.

Everything is computed in 64 bits and rounded once, at the end. The radius comes from 64 random
bits, u = (w + 1/2) / 2^64, so the largest number is sqrt(130 ln 2) = 9.49: the part of the normal
law beyond it has probability 2e-21. (Radii from 32 bits would end at 6.76, probability 1e-11, which
a model of a million parameters meets within a hundred thousand steps.)

``add_noise_`` uses one Triton kernel where there is Triton, else torch operations that compute the
same numbers up to the last bits of log, sin and cos.

The keys by which a batch without replacement is chosen are the words of ``Streams`` (Philox-4x64,
keyed and counted as there), which ``batch_keys`` makes on a GPU to the bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

#: No noise is larger than this.
LARGEST_NORMAL = math.sqrt(130 * math.log(2))

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_PAIRS_PER_PROGRAM = 256  # of the kernel


def add_noise_(
    out: Tensor, sums: Tensor, names: Tensor, *, scale: Tensor, spread: Tensor, accumulate: bool
) -> Tensor:
    """Write ``scale * sums + spread * noise`` to ``out``, or add it there.

    Args:
        out: [draws, D], contiguous.
        sums: [draws, D], contiguous.
        names: [draws, 2] words of 64 random bits as int64, the names of the draws' noise.
        scale: [draws] in 64 bits.
        spread: [draws] in 64 bits; where it is 0 there is no noise.
        accumulate: add to ``out`` instead of writing.

    Example:
        >>> out, one = torch.empty(1, 3), torch.ones(1, dtype=torch.float64)
        >>> names = torch.tensor([[5, 6]])
        >>> noisy = add_noise_(out, torch.ones(1, 3), names, scale=2 * one, spread=0 * one,
        ...                    accumulate=False)
        >>> noisy.tolist()
        [[2.0, 2.0, 2.0]]
    """
    if out.is_cuda and AVAILABLE:
        _launch(out, sums, names, scale, spread, accumulate=accumulate)
        return out
    for row in range(out.shape[0]):  # row by row: the words of all at once may not fit
        noise = standard_normals(names[row], out.shape[1])
        noisy = (scale[row] * sums[row] + spread[row] * noise).to(out.dtype)
        if accumulate:
            out[row] += noisy
        else:
            out[row] = noisy
    return out


def batch_keys(named: Tensor, longest: int) -> Tensor:
    """[draws, longest] words of the draws' streams, in the order of unsigned numbers; needs Triton.

    Args:
        named: [7, draws]: three words of a stream's counter, two of its key, and how many words it
            has; beyond them are the largest there are.
        longest: as many as the longest has.
    """
    draws = named.shape[1]
    keys = torch.empty(draws, longest, dtype=torch.int64, device=named.device)
    blocks = -(-longest // (4 * _PAIRS_PER_PROGRAM))
    _key_kernel[(blocks, draws)](keys, named, longest, draws, BLOCK=_PAIRS_PER_PROGRAM)
    return keys


def standard_normals(name: Tensor, count: int) -> Tensor:
    """The first ``count`` standard normal numbers of one name, in 64 bits.

    Example:
        >>> name = torch.tensor([1, 2])
        >>> long, short = standard_normals(name, 9), standard_normals(name, 4)
        >>> torch.equal(long[:4], short)
        True
    """
    pairs = torch.arange((count + 1) // 2, device=name.device)
    key, second = name[0], name[1].expand_as(pairs)
    counter = (pairs & _MASK, pairs >> 32, second & _MASK, (second >> 32) & _MASK)
    words = philox(counter, (key & _MASK, (key >> 32) & _MASK))
    radius = (-2.0 * _unit(words[0], words[1]).log()).sqrt()
    angle = (2.0 * math.pi) * _unit(words[2], words[3])
    both = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return both.reshape(-1)[:count]


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10 (Salmon et al., 2011): words of 32 bits, kept in int64.

    Example:
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> [f"{int(word):08x}" for word in philox((zero,) * 4, (zero,) * 2)]
        ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 products wrap around, which leaves all 64 bits of the unsigned product right.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _MASK) ^ c1 ^ k0,
            second & _MASK,
            ((first >> 32) & _MASK) ^ c3 ^ k1,
            first & _MASK,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def _unit(high: Tensor, low: Tensor) -> Tensor:
    """Two words as a number above 0 and at most 1: (2^32 high + low + 1/2) / 2^64."""
    return high.double() * 2.0**-32 + (low.double() + 0.5) * 2.0**-64


def _launch(
    out: Tensor, sums: Tensor, names: Tensor, scale: Tensor, spread: Tensor, *, accumulate: bool
) -> None:
    """One launch for all draws; see ``add_noise_``."""
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
        # As in ``_unit``: (2^32 high + low + 1/2) / 2^64.
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

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _key_kernel(  # type: ignore[no-untyped-def]
        keys, named, longest, draws, BLOCK: tl.constexpr  # noqa: N803
    ):  # fmt: skip
        draw = tl.program_id(1).to(tl.int64)
        block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        c0 = (block + 1).to(tl.uint64)  # a counter is advanced before its words are made
        none = tl.zeros([BLOCK], tl.uint64)
        c1 = none + tl.load(named + draw).to(tl.uint64, bitcast=True)
        c2 = none + tl.load(named + draws + draw).to(tl.uint64, bitcast=True)
        c3 = none + tl.load(named + 2 * draws + draw).to(tl.uint64, bitcast=True)
        k0 = tl.load(named + 3 * draws + draw).to(tl.uint64, bitcast=True)
        k1 = tl.load(named + 4 * draws + draw).to(tl.uint64, bitcast=True)
        count = tl.load(named + 5 * draws + draw)
        m0 = tl.full([BLOCK], 0xD2E7470EE14C6C93, tl.uint64)
        m1 = tl.full([BLOCK], 0xCA5A826395121157, tl.uint64)
        for _ in tl.static_range(10):
            high_0, high_1 = tl.umulhi(c0, m0), tl.umulhi(c2, m1)
            low_0, low_1 = c0 * m0, c2 * m1
            c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
            k0 += 0x9E3779B97F4A7C15
            k1 += 0xBB67AE8584CAA73B
        entry = 4 * block
        row = keys + draw * longest
        _store_key(row, entry, c0, count, longest)
        _store_key(row, entry + 1, c1, count, longest)
        _store_key(row, entry + 2, c2, count, longest)
        _store_key(row, entry + 3, c3, count, longest)

    @triton.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def _store_key(row, entry, word, count, longest):  # type: ignore[no-untyped-def]
        # With its first bit turned over a word compares as a signed number as it did without sign.
        key = word.to(tl.int64, bitcast=True) ^ (-0x8000000000000000)
        key = tl.where(entry < count, key, 0x7FFFFFFFFFFFFFFF)
        tl.store(row + entry, key, mask=entry < longest)

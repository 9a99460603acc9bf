# SPDX-License-Identifier: Apache-2.0
"""Normal noise on an accelerator: all draws of a pass at once, each from a generator of its own.

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
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpcohort.engine import counter_noise_kernel

__all__ = ["LARGEST_NORMAL", "add_noise_", "philox", "standard_normals"]

#: No noise is larger than this.
LARGEST_NORMAL = math.sqrt(130 * math.log(2))

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


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
    if out.is_cuda and counter_noise_kernel.AVAILABLE:
        counter_noise_kernel.launch(out, sums, names, scale, spread, accumulate=accumulate)
        return out
    for row in range(out.shape[0]):  # row by row: the words of all at once may not fit
        noise = standard_normals(names[row], out.shape[1])
        noisy = (scale[row] * sums[row] + spread[row] * noise).to(out.dtype)
        if accumulate:
            out[row] += noisy
        else:
            out[row] = noisy
    return out


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

# SPDX-License-Identifier: Apache-2.0
"""Clipped gradients and their noisy sum as integers, so that the proof is about what is computed.

In units of g = z C / 2^e the noise has standard deviation 2^e and a record may move the sum by
C/g = 2^e / z at most. e is chosen so that this is at least 2^22: a coordinate of a clipped gradient
is kept to a quarter of a millionth of C.

1. A record's gradient is computed from that record and the weights alone. Its norm is taken in
   float64, where no gradient of float32 numbers overflows or underflows; it is scaled to norm at
   most C (1 - 10^-5) and cut off towards 0 to integers. Cutting makes no coordinate larger, so the
   norm of the integers is at most C/g however many coordinates there are; it is checked, and a
   gradient that does not pass, or is not finite, contributes nothing. Each of these steps is done
   to every record alike: there is no branch in them. Gradients may come in parts, and as factors
   of outer products, of which the same is computed.
2. Integers are added. No order of adding, no batch beside it and no rounding changes what a record
   contributes: the sums of two neighbouring data sets differ by that record's integers, at most
   C/g (zero-out) or 2C/g (replace-one) in L2 norm, exactly. 2^20 records at the smallest noise
   and 2^40 at z of 1 or more fit 64 bits; were there more, sum and noise would wrap around alike,
   which is a function of the noisy sum: post-processing, useless but private.
3. ``round(2^e Z)`` with Z standard normal is added to every coordinate.

Clients whose noise is distributed add up on one lattice: with one e for all of them, and 2^e the
noise that they have together, a record of client k may move the sum by 2^e / z_k, z_k being that
noise against what its weight lets a record do (``experiment``).

So the sum of step 3 is the Gaussian mechanism with noise multiplier z, rounded. All that follows,
the division by B, the step, the model, uses these integers and public numbers only.

**The noise** is that law exactly, from a ChaCha20 stream. Added to an integer x it gives
``round(x + 2^e Z)``, for rounding commutes with adding an integer: the output is the continuous
Gaussian mechanism, rounded. Rounding looks at no data, so it is post-processing, and whatever is
proved of the continuous mechanism with noise 2^e holds for the integers as it stands. On the
lattice every x has the same possible outputs, so no output is off it (the precision attack of
Mironov, 2012, has nothing to see).

**Bits.** A key of 256 bits from the operating system, used once, and the blocks of its ChaCha20
stream, 16 words of 32 bits each. Coordinates come in spans of 1280, from 128 blocks. Block i gives
five pairs: pair k is coordinates 128 k + i and 640 + 128 k + i of the span,

    2^e sqrt(-2 ln u) cos(2 pi v)    and    2^e sqrt(-2 ln u) sin(2 pi v),    rounded

(Box and Muller), u and v in (0, 1). Words 3k and 3k + 1 are the first 32 bits of u and v, the
halves of word 3k + 2 the next 16, and word 15 gives three more to each. Another 144 bits of both
are there when they are needed, in a second stream of the same key. Nobody who does not know the key
can tell the stream from coin tosses, let alone solve for its state; a generator made for simulation
gives its state away through any few thousand coordinates whose gradient is known to be zero.

**Exactness.** Numbers are computed in float64 from the first 51 bits of u and v, with a bound on
how far the exact number may be away: the bits left out move it by at most 2^-50 / (u r) (through
the radius r) and 2^-49 r (through the angle), and the rounding of log, sqrt, sin, cos and of the
products, each within 4 units in the last place, by less than 2^-48 r. Where rounding to an
integer could come out otherwise within 2^-47 r + 2^-49 / (u r), for one coordinate in five
million at e = 22 and for all of the far tail, the integer is computed again from all 195 bits of u
and v in 320 bits precision. What comes out is therefore the same integer on every machine, on a CPU
and on a GPU: the rounding of an exact function of the key. :func:`exact_coordinate` is that
function, slow and obvious.

u and v are multiples of 2^-195. Replacing them by real numbers that begin with the same bits moves
a coordinate across a rounding boundary with probability below 2^(e-189). So a coordinate is within
:data:`TOTAL_VARIATION` = 2^-130 of its law for every e up to 40, and D coordinates in n steps raise
a δ by at most (1 + e^ε) D n 2^-130, which is paid for (:func:`delta_of_sampling`). The law ends at
16.4 standard deviations, where it has probability 2^-195.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from dpcohort._validate import IntArray, number, whole_number
from dpcohort.engine import _lattice_noise_kernel as lattice_noise_kernel
from dpcohort.engine import _segment_kernel as segment_kernel
from dpcohort.engine._lattice_noise_kernel import BLOCKS, SPAN
from dpcohort.engine.clipping._layers import Part

#: Distance of one drawn coordinate from the exact law.
TOTAL_VARIATION = 2.0**-130
#: Largest e: beyond it float64 would leave more than one coordinate in 25 to exact arithmetic.
LARGEST_EXPONENT = 40
#: Length of a key.
KEY_BYTES = 32

#: Gives so many random bytes; ``os.urandom`` in all but tests.
Bytes = Callable[[int], bytes]
Words = NDArray[np.uint32]

_PAIRS = 5  # of a block
_SPANS_AT_A_TIME = 40  # on a CPU
_ZEROS = bytes(64 * BLOCKS * _SPANS_AT_A_TIME)
_MORE_BITS, _MORE = 1, 144  # names the stream of further bits; how many of them
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
        total: [D] int64 in the host's memory; changed in place.
        exponent: e; the standard deviation is 2^e.
        key: 32 random bytes that are used for nothing else, ever.

    Returns:
        ``total``.

    Example:
        >>> total = add_rounded_gaussian_(torch.zeros(5, dtype=torch.int64), 20, bytes(32))
        >>> [int(n) for n in total] == [exact_coordinate(i, 20, bytes(32)) for i in range(5)]
        True
    """
    _check(exponent, len(key))
    for _, part, noise in _in_blocks(total.numel(), [exponent], [key]):
        total[part] += noise[0]
    return total


def release(
    totals: Tensor,
    exponents: Sequence[int],
    keys: Sequence[bytes],
    *,
    factors: Sequence[float],
    dtype: torch.dtype,
    meanwhile: Callable[[], None] = lambda: None,
) -> Tensor:
    """``factor (total + noise)`` of each row, rounded to floats: what may leave a private step.

    Args:
        totals: [rows, D] int64, sums of clipped gradients. SENSITIVE.
        exponents: e of each row.
        keys: of each row, 32 random bytes that are used for nothing else, ever.
        factors: public numbers.
        dtype: of the result.
        meanwhile: work for the host while a GPU computes; elsewhere nothing is done with it.

    Returns:
        [rows, D], on the device of ``totals``.

    Example:
        >>> totals = torch.zeros(1, 3, dtype=torch.int64)
        >>> released = release(totals, [20], [bytes(32)], factors=[2.0], dtype=torch.float64)
        >>> released[0].tolist() == [2.0 * exact_coordinate(i, 20, bytes(32)) for i in range(3)]
        True
    """
    for exponent, size in set(zip(exponents, map(len, keys), strict=True)):
        _check(exponent, size)
    if totals.is_cuda:
        out = torch.empty(totals.shape, dtype=dtype, device=totals.device)
        doubtful = lattice_noise_kernel.release(out, totals, exponents, keys, factors, meanwhile)
        if doubtful is not None:
            for row, span in doubtful:  # those spans again, on the host
                part = slice(SPAN * span, SPAN * (span + 1))
                total = totals[row, part].cpu()
                total += _noise(span, total.numel(), exponents[row : row + 1], [keys[row]])[0]
                out[row, part] = (total.double() * factors[row]).to(out)
            return out
    rows = totals.to("cpu")  # the same integers, on a machine without the kernel
    out = torch.empty(rows.shape, dtype=dtype)
    scales = torch.tensor(factors, dtype=torch.float64)[:, None]
    for some, part, noise in _in_blocks(rows.shape[1], exponents, keys):
        out[some, part] = noise.add_(rows[some, part]).double().mul_(scales[some]).to(dtype)
    return out.to(totals.device)


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
    span, place = divmod(position, SPAN)
    is_sine, pair = divmod(place, SPAN // 2)
    k, own = divmod(pair, BLOCKS)
    block = span * BLOCKS + own
    words = np.frombuffer(_stream(key, block, 64), dtype="<u4").tolist()
    more = _stream(key, _PAIRS * block + k, 64, _MORE_BITS)
    both = []
    for which in (0, 1):
        first, half = words[3 * k + which], words[3 * k + 2] >> 16 * (1 - which) & 0xFFFF
        three = words[15] >> 6 * k + 3 * which & 7
        rest = int.from_bytes(more[18 * which : 18 * (which + 1)], "little")
        both.append(((first << 19 | half << 3 | three) << _MORE) + rest)
    with mpmath.workprec(_PRECISION):
        u, v = (mpmath.mpf(2 * bits + 1) / 2 ** (52 + _MORE) for bits in both)
        turn = mpmath.sin(2 * mpmath.pi * v) if is_sine else mpmath.cos(2 * mpmath.pi * v)
        return int(mpmath.floor(mpmath.sqrt(-2 * mpmath.log(u)) * turn * 2**exponent + 0.5))


def delta_of_sampling(epsilon: float, coordinates: int, steps: int) -> float:
    """How much δ grows because the noise is drawn within 2^-130 of its law and not at it.

    If each of two laws is within t of its ideal in total variation and the ideals keep (ε, δ), the
    two keep (ε, δ + (1 + e^ε) t); distances of independent coordinates and steps add up.

    Example:
        >>> delta_of_sampling(8.0, 26_010, 1000) < 1e-28
        True
    """
    return (1 + math.exp(min(epsilon, 700.0))) * coordinates * steps * TOTAL_VARIATION


def _check(exponent: int, key_bytes: int) -> None:
    whole_number("exponent", exponent, at_least=0, at_most=LARGEST_EXPONENT)
    if key_bytes != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {key_bytes}")


def _in_blocks(
    count: int, exponents: Sequence[int], keys: Sequence[bytes]
) -> Iterator[tuple[slice, slice, Tensor]]:
    """The noise [keys, count], some at a time: what is computed stays in a cache."""
    at_a_time = max(1, _SPANS_AT_A_TIME // max(1, -(-count // SPAN)))
    for row in range(0, len(keys), at_a_time):
        some = slice(row, row + at_a_time)
        for start in range(0, count, SPAN * _SPANS_AT_A_TIME):
            part = slice(start, min(count, start + SPAN * _SPANS_AT_A_TIME))
            noise = _noise(start // SPAN, part.stop - start, exponents[some], keys[some])
            yield some, part, noise


def _noise(span: int, count: int, exponents: Sequence[int], keys: Sequence[bytes]) -> Tensor:
    """The noise of so many coordinates of each key, from this span on."""
    noise, doubtful = _nearly_exact(span, count, exponents, keys)
    for row, position in doubtful:
        exact = exact_coordinate(SPAN * span + position, exponents[row], keys[row])
        noise[row, position] = exact
    return noise


def _nearly_exact(
    span: int, count: int, exponents: Sequence[int], keys: Sequence[bytes]
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Noise [keys, count] from this span on, right in all places but the doubtful ones."""
    spans, halves, pairs, blocks = -(-count // SPAN), 2, _PAIRS, BLOCKS
    if 0 < count <= SPAN // 2:  # no more of a span than is asked for
        halves, pairs, blocks = 1, -(-count // BLOCKS), min(count, BLOCKS)
    size = 64 * (BLOCKS * (spans - 1) + blocks)
    stream = b"".join(_stream(key, span * BLOCKS, size) for key in keys)
    words = np.frombuffer(stream, dtype="<u4").reshape(len(keys), spans, blocks, 16)
    words = np.ascontiguousarray(words.transpose(0, 1, 3, 2), dtype=np.uint32)
    used, last = 3 * pairs, words[:, :, 2 : 3 * pairs : 3]
    three = words[:, :, 15:] >> (6 * np.arange(pairs, dtype=np.uint32))[:, None]
    u = _unit(words[:, :, 0:used:3], last >> np.uint32(16), three)
    v = _unit(words[:, :, 1:used:3], last & np.uint32(0xFFFF), three >> np.uint32(3))
    angle = torch.from_numpy(v).mul_(2.0 * math.pi)
    radius = np.log(u)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    # 1/2 - 2^e (2^-47 r + 2^-49 / (u r)): farther than this from the integer is too near the next.
    u *= radius
    deviations = torch.tensor([2.0**exponent for exponent in exponents], dtype=torch.float64)
    deviations = deviations.view(-1, 1, 1, 1)
    sure = torch.from_numpy(u).reciprocal_().mul_(-(2.0**-49) * deviations)
    length = torch.from_numpy(radius)
    length.mul_(deviations)
    sure.add_(length, alpha=-(2.0**-47)).add_(0.5)
    noise = torch.empty(len(keys), spans, halves, pairs, blocks, dtype=torch.int64)
    doubtful: list[tuple[int, int]] = []
    for half in range(halves):
        turned = (angle.sin_() if half else angle.cos()).mul_(length)
        nearest = turned.round()
        noise[:, :, half] = nearest
        gap = turned.sub_(nearest).abs_().sub_(sure)
        if float(gap.max()) >= 0.0:
            doubtful += [
                (row, SPAN * s + SPAN // 2 * half + BLOCKS * k + i)
                for row, s, k, i in (gap >= 0.0).nonzero().tolist()
            ]
    noise = noise.view(len(keys), -1)[:, :count]
    return noise, [(row, position) for row, position in doubtful if position < count]


def _unit(first: Words, half: Words, three: Words) -> NDArray[np.float64]:
    """51 bits as a number in (0, 1), in the middle of what they leave open."""
    low = (half << np.uint32(3)) | (three & np.uint32(7))
    unit = first.astype(np.float64)
    unit *= 2.0**19
    unit += low
    unit += 0.5
    unit *= 2.0**-51
    return unit


def _stream(key: bytes, block: int, size: int, name: int = 0) -> bytes:
    """Bytes of the ChaCha20 stream of a key, from a block on."""
    nonce = block.to_bytes(8, "little") + name.to_bytes(8, "little")
    cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None)
    return cipher.encryptor().update(memoryview(_ZEROS)[:size])


#: A record's largest contribution is at least two to this.
_BITS = 22
#: Noise multipliers for which all integers fit 64 bits.
SMALLEST_NOISE = 2.0**-20
LARGEST_NOISE = 2.0 ** (LARGEST_EXPONENT - _BITS)
#: Clipping aims this much lower, more than floats can round it up again.
_SLACK = 1e-5
#: And the integers' norm, itself a float sum, must be below this much of the bound.
_PASSES = math.sqrt(1 - 1e-6)
#: Numbers of gradients that are cut to integers at a time on a CPU; so few of a pair are formed.
_NUMBERS_AT_A_TIME, _SMALL = 1 << 21, 1 << 12
#: Integers in float64 add up exactly to this.
_EXACT_IN_FLOAT64 = 2.0**53


def exponent_for(noise_multiplier: float) -> int:
    """The least e, from 22 on, for which a record may contribute 2^22 at least.

    Example:
        >>> exponent_for(0.1), exponent_for(5.0)
        (22, 25)
    """
    return _BITS + max(0, math.ceil(math.log2(noise_multiplier)))


@dataclass(frozen=True)
class Lattice:
    """The integers of one noisy step.

    Attributes:
        noise_multiplier: z.
        clip: C.
        common_exponent: e where several clients add up on one lattice: :func:`exponent_for` the
            largest of their z. None takes the one that this z needs.

    Example:
        >>> lattice = Lattice(2.0, 1.0)
        >>> lattice.exponent, lattice.bound
        (23, 4194304.0)
        >>> total = lattice.clipped_sum(torch.tensor([[3.0, 4.0], [float("nan"), 0.0]]))
        >>> [round(value * lattice.unit, 4) for value in total.tolist()]
        [0.6, 0.8]
    """

    noise_multiplier: float
    clip: float
    common_exponent: int | None = None

    def __post_init__(self) -> None:
        number("noise_multiplier", self.noise_multiplier, at_least=SMALLEST_NOISE)
        number("noise_multiplier", self.noise_multiplier, at_most=LARGEST_NOISE)
        number("clip", self.clip, above=0, at_most=1e12)
        if self.common_exponent is not None:
            least = exponent_for(self.noise_multiplier)
            whole_number(
                "common_exponent", self.common_exponent, at_least=least, at_most=LARGEST_EXPONENT
            )

    @functools.cached_property
    def exponent(self) -> int:
        """The exponent e: the noise has standard deviation 2^e."""
        if self.common_exponent is not None:
            return self.common_exponent
        return exponent_for(self.noise_multiplier)

    @functools.cached_property
    def unit(self) -> float:
        """The distance g = z C / 2^e between two points of the lattice."""
        return math.ldexp(self.noise_multiplier * self.clip, -self.exponent)

    @functools.cached_property
    def bound(self) -> float:
        """C/g = 2^e / z, what a record may contribute at most, in units of g."""
        return math.ldexp(1.0, self.exponent) / self.noise_multiplier

    def clipped_sum(self, gradients: Tensor) -> Tensor:
        """The records' gradients, each clipped and on the lattice, added up. SENSITIVE.

        Args:
            gradients: [records, D], raw; a row must be a function of one record and the weights.

        Returns:
            [D] int64.
        """
        return self.clipped_sums([(gradients,)])[0]

    def clipped_sums(
        self,
        parts: Sequence[Part],
        there: Tensor | None = None,
    ) -> list[Tensor]:
        """The same of gradients that come in parts. SENSITIVE.

        Args:
            parts: each a matrix [records, n], raw, alone in a tuple: numbers of every record's
                gradient. A pair g [records, m] and a [records, n] stands for the m n numbers of
                g a^T of each record.
            there: [records], false for those that count for nothing; None if there are none.

        Returns:
            The sum of each part, int64, flat.

        Example:
            >>> g, a = torch.tensor([[1.0]]), torch.tensor([[3.0, 4.0]])
            >>> [sums] = Lattice(2.0, 1.0).clipped_sums([(g, a)])
            >>> torch.equal(sums, Lattice(2.0, 1.0).clipped_sum(a))
            True
        """
        first = parts[0][0]
        if there is None:
            there = torch.ones(len(first), dtype=torch.bool, device=first.device)
        if segment_kernel.fits(parts) and len(there) * self.bound < segment_kernel.LARGEST_SUM:
            bounds, whole = self.bound * there.double(), torch.tensor([0, len(there)])
            clips, ends = torch.full_like(bounds, self.clip), whole.to(first.device)[:, None]
            return [total[0] for total in segment_sums(parts, clips, bounds, *ends)]
        lengths = [_length(part) for part in parts]
        at_a_time = len(there)
        if first.device.type == "cpu":  # what is computed of these rows stays in a cache
            at_a_time = max(1, _NUMBERS_AT_A_TIME // max(1, sum(lengths)))
        sums: list[Tensor] = []
        for start in range(0, len(there), at_a_time):
            rows = slice(start, start + at_a_time)
            norms, found = gradient_norms([tuple(one[rows] for one in part) for part in parts])
            more = self._cut_sums(norms, found, there[rows])
            sums = [one + other for one, other in zip(sums, more, strict=True)] if sums else more
        if not sums:
            return [there.new_zeros(length, dtype=torch.int64) for length in lengths]
        small = [_length(part) for part in parts if _is_joined(part)]
        joined = iter(torch.split(sums[0], small))
        large = iter(sums[1:])
        return [next(joined if _is_joined(part) else large) for part in parts]

    def _cut_sums(self, norms: Tensor, parts: Sequence[Part], there: Tensor) -> list[Tensor]:
        """The sums of parts, which are used up, on the lattice."""
        terms = norms.new_tensor([self.clip, self.bound])
        factors, finite = factors_and_finite(norms, there, *terms)
        factors = factors[:, None]
        # All bits of a row that is not finite become 0, whatever they were: NaN times 0 is NaN.
        for part in parts:
            for rows in part:
                rows.view(torch.int64).bitwise_and_(-finite.long()[:, None])
        cuts = []
        for part in parts:
            if len(part) == 2:
                products = torch.mul((part[0] * factors)[:, :, None], part[1][:, None])
                cuts.append(_cut_off_(products.flatten(1)))
            else:
                cuts.append(_cut_off_(part[0].mul_(factors)))
        lengths = _joined_norms([torch.linalg.vector_norm(cut, dim=1) for cut in cuts])
        passed = (lengths <= self.bound * _PASSES).double()
        if len(there) * self.bound < _EXACT_IN_FLOAT64:  # however a product adds up
            return [(passed @ cut).long() for cut in cuts]
        return [(passed[:, None] * cut).long().sum(0) for cut in cuts]

    def release(
        self, total: Tensor, key: bytes, *, scale: float, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """A sum with fresh noise in every coordinate, ``scale g (total + noise)`` [D].

        Args:
            total: what ``clipped_sum`` gave.
            key: 32 random bytes that are used for nothing else, ever.
            scale: a public number.
            dtype: of the result.
        """
        terms = ([self.exponent], [key])
        return release(total[None], *terms, factors=[scale * self.unit], dtype=dtype)[0]


def segment_sums(
    parts: Sequence[Part], clips: Tensor, bounds: Tensor, starts: Tensor, stops: Tensor
) -> list[Tensor]:
    """``Lattice.clipped_sums`` of many lattices and draws at once, by kernels of a GPU. SENSITIVE.

    Args:
        parts: as there, on which the kernels work (``segment_kernel.fits``).
        clips: [records] C of each, in float64.
        bounds: [records] what each may contribute; 0 of one that is not there.
        starts: [segments] the first record of each.
        stops: [segments] the one behind its last.

    Returns:
        The sums [segments, numbers] of each part, int64.
    """
    parts = [tuple(one.contiguous() for one in part) for part in parts]
    norms = segment_kernel.squares(parts).sqrt()
    factors, _ = factors_and_finite(norms, bounds > 0, clips, bounds)
    passed = segment_kernel.cut_squares(parts, factors).sqrt() <= bounds * _PASSES
    factors = torch.where(passed, factors, 0.0)
    return segment_kernel.sums(parts, factors, starts, stops)


#: The lattice of a noise multiplier and a clip; a training has few.
lattice_of = functools.lru_cache(maxsize=1 << 14)(Lattice)


def factors_and_finite(
    norms: Tensor, there: Tensor, clip: Tensor, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """What brings gradients of these norms to the lattice, clipped; and which are numbers.

    Args:
        norms: of gradients, in float64.
        there: false for those that count for nothing.
        clip: C, one for all or one each.
        bound: C/g.

    Returns:
        Factors, 0 for all that count for nothing or are not finite; and which are left.
    """
    finite = torch.isfinite(norms).logical_and_(there)
    factors = torch.minimum((1 - _SLACK) / norms, 1 / clip).mul_(bound)
    return torch.where(finite, factors, 0.0), finite


def cut_sum(scaled: Tensor, bound: Tensor) -> Tensor:
    """Sums [sums, n] over the records of clipped gradients that are cut to integers.

    Args:
        scaled: [sums, records, n] in units of the lattice, all of them numbers; used up.
        bound: [sums, 1], what a record may contribute at most.
    """
    cut = _cut_off_(scaled)
    passed = torch.linalg.vector_norm(cut, dim=2) <= bound * _PASSES
    if cut.shape[1] * float(bound.max()) < _EXACT_IN_FLOAT64:  # however a product adds up
        return torch.bmm(passed.double()[:, None], cut)[:, 0].long()
    sums: Tensor = (passed[..., None] * cut).long().sum(1)
    return sums


def gradient_norms(parts: Sequence[Part]) -> tuple[Tensor, list[Part]]:
    """Norms [records] of gradients in parts, and the parts themselves, copied, both in float64.

    Returns:
        Norms; all but large pairs joined in one matrix, and large pairs.

    Example:
        >>> gradient_norms([(torch.ones(1, 2),), (torch.ones(1, 2), torch.ones(1, 7))])[0].tolist()
        [4.0]
    """
    first = parts[0][0]
    may_overflow = first.dtype == torch.float64
    small = [part for part in parts if _is_joined(part)]
    width = sum(map(_length, small))
    joined = torch.empty(len(first), width, dtype=torch.float64, device=first.device)
    place = 0
    for part in small:
        into = joined[:, place : place + _length(part)]
        is_pair = len(part) == 2
        into.copy_((part[0][:, :, None] * part[1][:, None]).flatten(1) if is_pair else part[0])
        place += _length(part)
    pairs = [tuple(one.double() for one in part) for part in parts if not _is_joined(part)]
    norms = [_norms(joined, may_overflow=may_overflow)]
    for pair in pairs:
        one, other = (_norms(rows, may_overflow=may_overflow) for rows in pair)
        norms.append(one * other)
    return _joined_norms(norms, may_overflow=may_overflow), [(joined,), *pairs]


def _cut_off_(values: Tensor) -> Tensor:
    """Towards zero, in place; torch's own takes ten times as long on a CPU."""
    if values.device.type != "cpu":
        return values.trunc_()
    np.trunc(values.numpy(), out=values.numpy())
    return values


def _joined_norms(norms: Sequence[Tensor], *, may_overflow: bool = False) -> Tensor:
    if len(norms) == 1:
        return norms[0]
    return _norms(torch.stack(list(norms), 1), may_overflow=may_overflow)


def _is_joined(part: Part) -> bool:
    """Whether it is computed with others: fewer and longer operations."""
    return len(part) == 1 or _length(part) <= _SMALL


def _length(part: Part) -> int:
    """Numbers of a record."""
    return math.prod(rows.shape[1] for rows in part)


def _norms(rows: Tensor, *, may_overflow: bool) -> Tensor:
    """Norm of each row in float64; numbers above 1e154 are scaled before they are squared."""
    if not may_overflow:
        plain: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return plain
    largest = rows.abs().amax(dim=1, keepdim=True)
    scale = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    scaled: Tensor = torch.linalg.vector_norm(rows / scale, dim=1) * scale[:, 0]
    return scaled

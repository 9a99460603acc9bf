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
   to every record alike: there is no branch in them.
2. Integers are added. No order of adding, no batch beside it and no rounding changes what a record
   contributes: the sums of two neighbouring data sets differ by that record's integers, at most
   C/g (zero-out) or 2C/g (replace-one) in L2 norm, exactly. 2^20 records at the smallest noise
   and 2^40 at z of 1 or more fit 64 bits; were there more, sum and noise would wrap around alike,
   which is a function of the noisy sum: post-processing, useless but private.
3. ``round(2^e Z)`` is added to every coordinate, see :mod:`~dpcohort.engine.lattice_noise`.

So the sum of step 3 is the Gaussian mechanism with noise multiplier z, rounded. All that follows,
the division by B, the step, the model, uses these integers and public numbers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpcohort._validate import number
from dpcohort.engine.lattice_noise import LARGEST_EXPONENT, release

__all__ = ["LARGEST_NOISE", "SMALLEST_NOISE", "Lattice"]

#: A record's largest contribution is at least two to this.
_BITS = 22
#: Noise multipliers for which all integers fit 64 bits.
SMALLEST_NOISE = 2.0**-20
LARGEST_NOISE = 2.0 ** (LARGEST_EXPONENT - _BITS)
#: Clipping aims this much lower, more than floats can round it up again.
_SLACK = 1e-5
#: And the integers' norm, itself a float sum, must be this much below the bound.
_CHECKED = 1e-6
#: Integers in float64 add up exactly to this.
_EXACT_IN_FLOAT64 = 2.0**53


@dataclass(frozen=True)
class Lattice:
    """The integers of one noisy step.

    Attributes:
        noise_multiplier: z.
        clip: C.

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

    def __post_init__(self) -> None:
        number("noise_multiplier", self.noise_multiplier, at_least=SMALLEST_NOISE)
        number("noise_multiplier", self.noise_multiplier, at_most=LARGEST_NOISE)
        number("clip", self.clip, above=0, at_most=1e12)

    @property
    def exponent(self) -> int:
        """The exponent e: the noise has standard deviation 2^e."""
        return _BITS + max(0, math.ceil(math.log2(self.noise_multiplier)))

    @property
    def unit(self) -> float:
        """The distance g = z C / 2^e between two points of the lattice."""
        return math.ldexp(self.noise_multiplier * self.clip, -self.exponent)

    @property
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
        rows = gradients.double()
        norms = _norms(rows, may_overflow=gradients.dtype == torch.float64)
        within = norms <= self.clip * (1 - _SLACK)
        factors = torch.where(within, 1 / self.clip, (1 - _SLACK) / norms) * self.bound
        cut = (rows * factors[:, None]).trunc_()
        passed = torch.linalg.vector_norm(cut, dim=1) <= self.bound * math.sqrt(1 - _CHECKED)
        cut = cut.where(passed[:, None], cut.new_zeros(()))
        if len(cut) * self.bound < _EXACT_IN_FLOAT64:
            return cut.sum(0).long()
        return cut.long().sum(0)

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


def _norms(rows: Tensor, *, may_overflow: bool) -> Tensor:
    """Norm of each row in float64; numbers above 1e154 are scaled before they are squared."""
    if not may_overflow:
        plain: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return plain
    largest = rows.abs().amax(dim=1, keepdim=True)
    scale = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    scaled: Tensor = torch.linalg.vector_norm(rows / scale, dim=1) * scale[:, 0]
    return scaled

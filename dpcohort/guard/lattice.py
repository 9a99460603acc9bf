# SPDX-License-Identifier: Apache-2.0
"""Clipped gradients and their noisy sum as integers, so that the proof is about what is computed.

In units of g = z C / 2^e the noise has standard deviation 2^e and a record may move the sum by
C/g = 2^e / z at most. e is chosen so that this is at least 2^24: a gradient keeps 24 bits.

1. A record's gradient is computed from that record and the weights alone, scaled to norm at most
   C (1 - 10^-5) and cut off towards 0 to integers. Cutting makes no coordinate larger, so the norm
   of the integers is at most C/g however many coordinates there are; it is checked, and a
   gradient that does not pass, or is not finite, contributes nothing.
2. Integers are added. No order of adding, no batch beside it and no rounding changes what a record
   contributes: the sums of two neighbouring data sets differ by that record's integers, at most
   C/g (zero-out) or 2C/g (replace-one) in L2 norm, exactly. 2^18 records at the smallest noise
   and 2^38 at z of 1 or more fit 64 bits; were there more, sum and noise would wrap around alike,
   which is a function of the noisy sum: post-processing, useless but private.
3. ``round(2^e Z)`` is added to every coordinate, see :mod:`~dpcohort.guard.lattice_noise`.

So the sum of step 3 is the Gaussian mechanism with noise multiplier z, rounded. All that follows,
the division by B, the step, the model, uses these integers and public numbers only.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number
from dpcohort.guard.lattice_noise import LARGEST_EXPONENT, Bytes, rounded_gaussian

__all__ = ["LARGEST_NOISE", "SMALLEST_NOISE", "Lattice"]

#: Bits a clipped gradient keeps at least.
_BITS = 24
#: Noise multipliers for which all integers fit 64 bits.
SMALLEST_NOISE = 2.0**-20
LARGEST_NOISE = 2.0 ** (LARGEST_EXPONENT - _BITS)
#: Clipping aims this much lower, more than floats can round it up again.
_SLACK = 1e-5
#: And the integers' norm, itself a float sum, must be this much below the bound.
_CHECKED = 1e-6


@dataclass(frozen=True)
class Lattice:
    """The integers of one noisy step.

    Attributes:
        noise_multiplier: z.
        clip: C.

    Example:
        >>> lattice = Lattice(2.0, 1.0)
        >>> lattice.exponent, lattice.bound
        (25, 16777216.0)
        >>> total = lattice.contribution(np.array([3.0, 4.0]))
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

    def contribution(self, gradient: FloatArray) -> IntArray:
        """A record's gradient, clipped and on the lattice. SENSITIVE.

        Args:
            gradient: raw, in 64 bits.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            norm = math.sqrt(float(np.dot(gradient, gradient)))
        if not math.isfinite(norm):
            return np.zeros(gradient.size, dtype=np.int64)
        within = norm <= self.clip * (1 - _SLACK)
        factor = self.bound * (1 / self.clip if within else (1 - _SLACK) / norm)
        cut = np.trunc(gradient * factor)
        if not float(np.dot(cut, cut)) <= self.bound**2 * (1 - _CHECKED):
            return np.zeros(gradient.size, dtype=np.int64)
        return cut.astype(np.int64)

    def with_noise(self, total: IntArray, source: Bytes = os.urandom) -> IntArray:
        """The sum with fresh noise in every coordinate; only now may it be used."""
        return total + rounded_gaussian(total.size, self.exponent, source)

# SPDX-License-Identifier: Apache-2.0
"""Tests H and I: the noise follows from nothing that is seen, and its last bits tell nothing.

**H, state recovery.** Gradients are zero, so an update is noise that an attacker knows exactly
wherever a gradient is known to be zero. The Mersenne Twister, xorshift and their kin are linear
over GF(2): every bit they put out is a sum of bits of their state. The leading bits of the uniform
numbers behind the noise are read off (Box and Muller's transform is inverted, in the orders in
which torch and Python write it; besides, the signs as they come), and Berlekamp and Massey's
algorithm finds the rank of the linear equations they satisfy, the linear complexity. Of n random
bits it is n/2 within a few; of a linear generator it stays at the size of the state, and all
further bits follow from the first. At most 2^(2l - n) of all sequences have a complexity of l or
less, so the level of the test is exact. A generator that is not linear but weak passes: no test
can prove a generator good. A training that claims to be private and repeats its noise under one
seed fails as well: whoever knows the seed subtracts the noise.

**I, last bits** (Mironov, 2012). Noise on a lattice that is the same for all data has the same
possible values whatever was added to it; the floats that a floating-point noise can reach depend
on what it was added to. Looked for is a unit of which all values are multiples, with a gradient
and without; values whose float is too coarse to tell are left out.
"""

from __future__ import annotations

import numpy as np

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.audit._claims import Claim, Finding, PrivateTraining, repeats, updates_of

#: Twice the state of the largest linear generator in use, 19,937 bits, and a little more.
_BITS = 41_024
_RECORDS, _BATCH = 2, 2

#: Values of the lattice test, in each of both worlds.
_ROWS, _DIMENSION = 4, 1 << 15
_EXPONENTS = range(4, 47)  # units of 2^-e: no finer one can be told from a float
_FRACTION = 1 / 8  # distance from a multiple that is still rounding
_LEAST_VALUES = 64


def predictability(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    vectors: int = 2,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Try to recover the state of the generator behind the noise.

    Args:
        training: what to test.
        claim: the noise it claims.
        seed: seed for the training.
        vectors: noise vectors to try it on; each may have a generator of its own.
        false_alarm_rate: probability that a correct training fails.

    Example:
        >>> from dpcohort.audit import EngineUnderTest
        >>> finding = predictability(EngineUnderTest("batched"), Claim(sampler="fixed"))
        >>> finding.passed, finding.measured["linear complexity"]
        (False, 19937)
    """
    zeros = np.zeros((_RECORDS, _BITS))
    noise = updates_of(training, zeros, claim, batch_size=_BATCH, seed=seed, rounds=vectors)
    noise = noise.astype(np.float64) * (_BATCH / (claim.noise_multiplier * claim.clip))
    tried = [(read, row) for row in noise for read in _READINGS]
    level = false_alarm_rate / len(tried)
    lowest, how = min(
        (linear_complexity(_READINGS[read](row).tolist()), read) for read, row in tried
    )
    excess = _BITS - 2 * lowest  # as many bits followed from those before
    passed = 2.0 ** -min(excess, 1000) >= level
    detail = f"rank {lowest} of {_BITS} equations (chance: {_BITS // 2}), by {how}"
    if not passed:
        detail += f": a linear generator; the last {excess} bits follow from the first"
    if claim.private and repeats(training, claim, seed):
        passed, detail = False, f"{detail}; one seed gives the same noise again"
    return Finding(
        test="H predictability",
        passed=passed,
        detail=detail,
        false_alarm_rate=false_alarm_rate,
        measured={"linear complexity": lowest, "bits": _BITS},
    )


def linear_complexity(bits: list[int]) -> int:
    """Length of the shortest linear feedback register that puts out these bits (Massey, 1969).

    Example:
        >>> linear_complexity([1, 0, 0, 1, 0, 1, 1] * 3)
        3
    """
    taps, before, length, since, window = 1, 1, 0, 1, 0
    for position, bit in enumerate(bits):
        window = (window << 1) | int(bit)
        if (taps & window).bit_count() & 1 == 0:
            since += 1
        elif 2 * length <= position:
            taps, before = taps ^ (before << since), taps
            length, since = position + 1 - length, 1
        else:
            taps ^= before << since
            since += 1
    return length


def last_bits(training: PrivateTraining, claim: Claim, *, seed: int = 0) -> Finding:
    """Look for the lattice that the released values lie on, without and with a gradient.

    Example:
        >>> from dpcohort.audit import GuardUnderTest
        >>> last_bits(GuardUnderTest(), Claim(sampler="poisson")).passed
        True
    """
    gradient = np.random.default_rng(seed).standard_normal(_DIMENSION)
    gradient *= 0.7 * claim.clip / np.linalg.norm(gradient)
    quiet, loud = (
        updates_of(
            training,
            np.stack([row, np.zeros(_DIMENSION)]),
            claim,
            batch_size=_BATCH,
            seed=seed + world,
            rounds=_ROWS,
        ).ravel()
        for world, row in enumerate((np.zeros(_DIMENSION), gradient))
    )
    unit = _unit_of(quiet, claim)
    if unit is None:
        passed, detail = False, "no lattice: noise with the free last places of floats"
    else:
        passed = bool(_are_multiples(loud, unit))
        detail = f"every value is a multiple of 2^{np.log2(unit * _BATCH / claim.clip):.2f} C / B"
        detail += " with a gradient and without" if passed else ", but not with a gradient"
    return Finding(
        test="I last bits",
        passed=passed,
        detail=detail,
        false_alarm_rate=0.0,
        measured={} if unit is None else {"unit": unit},
    )


def _radius_and_angle(cosine: FloatArray, sine: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Leading bits of the two uniform numbers of Box and Muller's transform."""
    radius: BoolArray = np.expm1(-(cosine**2 + sine**2) / 2) <= -0.5
    angle: BoolArray = sine < 0
    return radius, angle


def _torch_bits(noise: FloatArray) -> BoolArray:
    """Of torch on a CPU: numbers j and j + 8 of each 16 are radius and angle, in that order."""
    blocks = noise.reshape(-1, 2, 8)
    return np.stack(_radius_and_angle(blocks[:, 0], blocks[:, 1]), axis=1).ravel()


def _python_bits(noise: FloatArray) -> BoolArray:
    """Of Python's ``random.gauss``: neighbours are cosine and sine; the angle is drawn first."""
    radius, angle = _radius_and_angle(noise[0::2], noise[1::2])
    return np.stack([angle, radius], axis=1).ravel()


def _signs(noise: FloatArray) -> BoolArray:
    return noise < 0


_READINGS = {
    "pairs as torch writes them": _torch_bits,
    "pairs as Python writes them": _python_bits,
    "signs": _signs,
}


def _unit_of(values: FloatArray, claim: Claim) -> float | None:
    """A unit of which all values are multiples, None if none is found."""
    if not np.all(np.isfinite(values)):
        return None
    scales = (claim.noise_multiplier * claim.clip / _BATCH, claim.clip / _BATCH, 1.0)
    units = [float(np.ldexp(scale, -e)) for e in _EXPONENTS for scale in scales]
    # Most lattices of another unit show by the smallest distance between small values.
    small = np.sort(values[np.argsort(np.abs(values))[: values.size // 8]].astype(np.float64))
    gaps = np.diff(small)
    if np.any(gaps > 0):
        least = float(gaps[gaps > 0].min())
        units += [_refined(least / parts, small) for parts in range(1, 9)]
    common = [unit for unit in units if _are_multiples(values, unit)]
    return max(common, default=None)


def _refined(unit: float, values: FloatArray) -> float:
    """The unit fitted to more and more values, so that rounding of one distance does not matter."""
    for reach in (8.0, 64.0, 512.0):
        near = values[np.abs(values) < reach * unit]
        counts = np.rint(near / unit)
        if np.any(counts):
            unit = float(near @ counts / (counts @ counts))
    return unit


def _are_multiples(values: FloatArray, unit: float) -> bool:
    """Whether the values that are exact enough to tell are multiples of the unit."""
    exact = values.astype(np.float64)
    precision = 2.0**-23 if np.array_equal(exact, exact.astype(np.float32)) else 2.0**-52
    shown = exact[np.abs(exact) * precision <= unit / 32] / unit
    distance = np.abs(shown - np.rint(shown))
    return shown.size >= _LEAST_VALUES and bool(np.all(distance <= _FRACTION))

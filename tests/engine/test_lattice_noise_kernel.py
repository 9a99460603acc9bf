# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import mpmath
import pytest
import torch

from dpcohort.engine import lattice_noise_kernel as kernel
from dpcohort.engine.lattice import add_rounded_gaussian_

KEY = bytes(range(32))


def test_without_triton_there_is_no_kernel_and_nothing_is_written() -> None:
    if kernel.AVAILABLE:
        pytest.skip("there is Triton here")
    out, totals = torch.full((1, 3), 7.0), torch.zeros(1, 3, dtype=torch.int64)
    assert kernel.release(out, totals, [22], [KEY], [1.0]) is None
    assert out.tolist() == [[7.0] * 3]


def test_the_constants_are_pairs_of_floats_that_hold_a_hundred_bits() -> None:
    pairs = kernel._constants(torch.device("cpu")).view(-1, 2).tolist()
    log, sine, cosine = kernel._LOG, kernel._SINE, kernel._COSINE
    assert len(pairs) == log + sine + cosine + 2
    with mpmath.workprec(200):
        wanted = {
            0: mpmath.mpf(1),
            1: mpmath.mpf(1) / 3,
            log + 1: -mpmath.mpf(1) / 6,
            log + sine + 2: mpmath.mpf(1) / math.factorial(4),
            len(pairs) - 2: mpmath.log(2),
            len(pairs) - 1: 2 * mpmath.pi,
        }
        for place, exact in wanted.items():
            held = mpmath.mpf(pairs[place][0]) + mpmath.mpf(pairs[place][1])
            assert abs(held - exact) <= abs(exact) * mpmath.mpf(2) ** -105


@pytest.mark.parametrize(("exponent", "count"), [(22, 300_001), (34, 60_001), (38, 3_600)])
def test_what_float64_cannot_decide_pairs_of_floats_do(
    cuda: str, exponent: int, count: int
) -> None:
    """At these exponents up to one coordinate in a hundred is in doubt."""
    if not kernel.AVAILABLE:
        pytest.skip("there is no Triton here")
    totals = torch.arange(2 * count, device=cuda).view(2, count)
    out = torch.empty(2, count, dtype=torch.float64, device=cuda)
    keys = [KEY, KEY[::-1]]
    assert kernel.release(out, totals, [exponent] * 2, keys, [1.0, 0.5]) == []
    for row, factor in enumerate((1.0, 0.5)):
        exact = add_rounded_gaussian_(totals[row].cpu(), exponent, keys[row])
        assert torch.equal(out[row].cpu(), factor * exact.double())

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import mpmath
import pytest
import torch

from dpcohort.engine import _lattice_noise_kernel as kernel
from dpcohort.engine._lattice import add_rounded_gaussian_

KEY = bytes(range(32))

if kernel.AVAILABLE:
    import triton
    import triton.language as tl

    from dpcohort.engine._lattice_noise_kernel import _radius, _turned

    @triton.jit
    def _functions(u, v, radius, along, across, SIZE: tl.constexpr):  # noqa: N803
        at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        tl.store(radius + at, _radius(tl.load(u + at)))
        turn = tl.load(v + at)
        one, other = _turned(turn * 0.0 + 1.0, turn)
        tl.store(along + at, one)
        tl.store(across + at, other)


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


def test_the_functions_are_within_two_units_in_the_last_place(cuda: str) -> None:
    """Random numbers, the smallest and largest, and both sides of where a case begins."""
    if not kernel.AVAILABLE:
        pytest.skip("there is no Triton here")
    size = 4096
    bits = torch.randint(1 << 51, (2, size), generator=torch.Generator().manual_seed(5))
    bits[:, :512] >>= torch.arange(512) // 11  # small u, small turns
    bits[:, 512:1024] = (1 << 51) - 1 - (bits[:, 512:1024] >> torch.arange(512) // 11)
    near = torch.arange(-64, 64)
    for place, case in enumerate((0.5**0.5, 0.5**1.5, 0.125, 0.375, 0.625, 0.875, 0.25, 0.5)):
        bits[:, 1024 + 128 * place : 1152 + 128 * place] = int(case * 2**51) + near
    u, v = (bits.double() + 0.5) * 2.0**-51
    found = [torch.empty(size, dtype=torch.float64, device=cuda) for _ in range(3)]
    _functions[(size // 128,)](u.to(cuda), 2 * v.to(cuda), *found, SIZE=128)
    radius, along, across = (one.tolist() for one in found)
    with mpmath.workprec(120):
        for i in range(size):
            x, turn = mpmath.mpf(u[i].item()), 2 * mpmath.mpf(v[i].item())
            exact = (mpmath.sqrt(-2 * mpmath.log(x)), mpmath.cospi(turn), mpmath.sinpi(turn))
            for value, wanted in zip((radius[i], along[i], across[i]), exact, strict=True):
                assert abs(value - wanted) <= abs(wanted) * mpmath.mpf(2) ** -51, (i, x, turn)


def test_at_the_largest_exponents_nothing_is_off_by_one_in_half_a_million(cuda: str) -> None:
    """Were the functions worse than the doubt allows for, some of these would be."""
    if not kernel.AVAILABLE:
        pytest.skip("there is no Triton here")
    totals = torch.zeros(2, 3_600, dtype=torch.int64, device=cuda)
    out = torch.empty(2, 3_600, dtype=torch.float64, device=cuda)
    for i in range(70):
        keys = [bytes([i, row]) * 16 for row in range(2)]
        assert kernel.release(out, totals, [38] * 2, keys, [1.0] * 2) == []
        for row, key in enumerate(keys):
            exact = add_rounded_gaussian_(torch.zeros(3_600, dtype=torch.int64), 38, key)
            assert torch.equal(out[row].cpu(), exact.double())

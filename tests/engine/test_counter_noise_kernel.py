# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.engine import counter_noise_kernel
from dpcohort.engine.counter_noise import add_noise_, standard_normals


def test_without_triton_or_a_gpu_the_noise_is_there_all_the_same() -> None:
    one = torch.ones(1, dtype=torch.float64)
    names, zeros = torch.tensor([[1, 2]]), torch.zeros(1, 9, dtype=torch.float64)
    out = add_noise_(zeros.clone(), zeros, names, scale=one, spread=one, accumulate=False)
    assert torch.equal(out[0], standard_normals(names[0], 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 512, 40_001])
def test_the_kernel_computes_the_same_numbers(cuda: str, dtype: torch.dtype, count: int) -> None:
    if not counter_noise_kernel.AVAILABLE:
        pytest.skip("there is no Triton here")
    names = torch.tensor([[1, 2], [-3, 4], [2**62 + 1, -(2**61)]])
    expected = torch.stack([standard_normals(name, count) for name in names])
    zeros = torch.zeros(3, count, dtype=dtype, device=cuda)
    one = torch.ones(3, dtype=torch.float64, device=cuda)
    got = add_noise_(
        zeros.clone(), zeros, names.to(cuda), scale=one, spread=one, accumulate=False
    ).cpu()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def test_the_kernel_adds_and_keeps_to_its_rows(cuda: str) -> None:
    padded = torch.full((4, 700), 7.0, device=cuda)
    out = padded[1:3]
    sums = torch.randn(2, 700, device=cuda)
    one = torch.ones(2, dtype=torch.float64, device=cuda)
    names = torch.tensor([[1, 2], [3, 4]], device=cuda)
    add_noise_(out, sums, names, scale=2 * one, spread=0 * one, accumulate=True)
    torch.testing.assert_close(out, 7 + 2 * sums)
    assert torch.all(padded[0] == 7)
    assert torch.all(padded[3] == 7)

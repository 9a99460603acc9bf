# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from dpcohort.engine import Streams
from dpcohort.engine import _counter_noise as counter_noise
from dpcohort.engine._counter_noise import LARGEST_NORMAL, add_noise_, philox, standard_normals
from dpcohort.errors import InputError


def noise(
    names: list[list[int]], count: int, *, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    zeros = torch.zeros(len(names), count, dtype=dtype, device=device)
    one = torch.ones(len(names), dtype=torch.float64, device=device)
    where = torch.tensor(names, device=device)
    return add_noise_(zeros.clone(), zeros, where, scale=one, spread=one, accumulate=False)


def test_known_answers_of_philox() -> None:
    # Of the generator's authors: counters and keys of all ones, and of digits of pi.
    def answer(counter: list[int], key: list[int]) -> list[int]:
        c = tuple(torch.tensor([word]) for word in counter)
        k = tuple(torch.tensor([word]) for word in key)
        return [int(word) for word in philox(c, k)]  # type: ignore[arg-type]

    assert answer([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    ]  # fmt: skip
    assert answer([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]) == [
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1,
    ]  # fmt: skip


def test_noise_of_a_draw_does_not_depend_on_the_others() -> None:
    together = noise([[1, 2], [-3, 4], [1, 5]], 33)
    for row, name in enumerate([[1, 2], [-3, 4], [1, 5]]):
        assert torch.equal(together[row], noise([name], 33)[0])
    assert not torch.any(together[0] == together[2])


@pytest.mark.parametrize("bit", [0, 31, 32, 63])
def test_every_bit_of_a_name_matters(bit: int) -> None:
    flipped = int(np.int64(np.uint64(7) ^ np.uint64(1 << bit)))
    for other in ([flipped, 9], [9, flipped]):
        plain = [7, 9] if other[1] == 9 else [9, 7]
        assert not torch.any(noise([plain], 64) == noise([other], 64))


def test_sums_are_scaled_and_noise_added() -> None:
    sums = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    names = torch.tensor([[1, 2], [3, 4]])
    scale = torch.tensor([2.0, 3.0], dtype=torch.float64)
    spread = torch.tensor([0.0, 0.5], dtype=torch.float64)
    out = torch.ones(2, 3, dtype=torch.float64)
    add_noise_(out, sums, names, scale=scale, spread=spread, accumulate=False)
    assert torch.equal(out[0], 2 * sums[0])
    torch.testing.assert_close(out[1], 3 * sums[1] + 0.5 * standard_normals(names[1], 3))
    before = out.clone()
    add_noise_(out, sums, names, scale=scale, spread=spread, accumulate=True)
    torch.testing.assert_close(out, 2 * before)


def check_law(values: np.ndarray) -> None:
    """Moments, law, tail and correlation of what should be independent standard normals."""
    n = values.size
    assert stats.kstest(values, "norm").pvalue > 1e-6
    assert abs(values.mean()) < 5 / np.sqrt(n)
    assert abs(values.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs((values**4).mean() - 3) < 5 * np.sqrt(96 / n)
    for lag in (1, 2, 3, 17):
        assert abs((values[lag:] * values[:-lag]).mean()) < 5 / np.sqrt(n)
        squares = (values**2 - 1) / np.sqrt(2)  # pairs share a radius: squares must not follow
        assert abs((squares[lag:] * squares[:-lag]).mean()) < 5 / np.sqrt(n)
    for bound in (3.0, 4.0, 4.5):
        expected = n * 2 * stats.norm.sf(bound)
        assert stats.poisson.cdf(np.sum(np.abs(values) > bound), expected) > 1e-7
        assert stats.poisson.sf(np.sum(np.abs(values) > bound) - 1, expected) > 1e-7
    assert np.abs(values).max() <= LARGEST_NORMAL


def test_the_law_of_the_noise() -> None:
    check_law(noise([[5, 6], [7, -8]], 200_001).flatten().numpy())


def test_names_that_follow_each_other_give_independent_noise() -> None:
    rows = noise([[i, 0] for i in range(300)] + [[0, i] for i in range(1, 300)], 50).numpy()
    check_law(rows.T.flatten())


def test_the_law_of_the_noise_on_a_gpu(cuda: str) -> None:
    check_law(noise([[5, 6], [7, -8]], 10_000_001, device=cuda).flatten().cpu().numpy())
    single = noise([[9, 9]], 4_000_001, device=cuda, dtype=torch.float32)
    check_law(single.flatten().double().cpu().numpy())


def test_streams_give_their_own_noise_on_a_gpu(cuda: str) -> None:
    name = {"round": 3, "client": 5, "draw": 1, "step": 2}
    one = Streams.seeded(4).normal_(torch.empty(5, 7, device=cuda), **name)
    assert torch.equal(one, Streams.seeded(4).normal_(torch.empty(5, 7, device=cuda), **name))
    for part in name:
        other = Streams.seeded(4).normal_(
            torch.empty(5, 7, device=cuda), **(name | {part: name[part] + 1})
        )
        assert not torch.any(one == other)
    with pytest.raises(InputError, match="for simulation"):
        Streams.from_entropy().normal_(torch.empty(50, device=cuda), **name)


def test_without_triton_or_a_gpu_the_noise_is_there_all_the_same() -> None:
    one = torch.ones(1, dtype=torch.float64)
    names, zeros = torch.tensor([[1, 2]]), torch.zeros(1, 9, dtype=torch.float64)
    out = add_noise_(zeros.clone(), zeros, names, scale=one, spread=one, accumulate=False)
    assert torch.equal(out[0], standard_normals(names[0], 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 512, 40_001])
def test_the_kernel_computes_the_same_numbers(cuda: str, dtype: torch.dtype, count: int) -> None:
    if not counter_noise.AVAILABLE:
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

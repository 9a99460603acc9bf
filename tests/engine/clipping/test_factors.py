# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import pytest
import torch

from dpcohort.engine.clipping import CLIP_SLACK, clip_factors, clip_rows
from dpcohort.engine.clipping._per_example import full_precision_products


def test_small_gradients_are_left_alone_and_large_ones_brought_to_the_clip() -> None:
    norms = torch.tensor([0.0, 0.5, 0.99, 1.0, 3.0, 1e15], dtype=torch.float64)
    clipped = clip_factors(norms.square(), 1.0) * norms
    assert clipped[:3].tolist() == [0.0, 0.5, 0.99]
    assert torch.all(clipped <= 1.0)
    torch.testing.assert_close(clipped[3:], torch.full((3,), 1 - CLIP_SLACK).double())


def test_what_is_not_finite_gets_nothing() -> None:
    bad = torch.tensor([float("nan"), float("inf")])
    assert clip_factors(bad, torch.tensor([1.0, 2.0])).tolist() == [0.0, 0.0]


EXTREMES = [0.0, 1e-45, 1e-38, 1e-20, -1.0, 3e18, -3e19, 3.4e38, math.inf, math.nan]


@pytest.mark.parametrize("clip", [1e-6, 1.0, 1e6])
def test_rows_of_any_size_come_out_at_most_as_long_as_the_clip(clip: float) -> None:
    rows = torch.tensor([[x, y] for x in EXTREMES for y in EXTREMES])
    factors, clipped = clip_rows(rows, clip)
    added = factors[:, None].double() * clipped.double()
    assert torch.isfinite(added).all()
    norms = added.norm(dim=1)
    assert float(norms.max()) <= clip
    raw = rows.double().norm(dim=1)
    wanted = torch.where(torch.isfinite(raw), raw.clamp(max=clip), 0.0)
    assert torch.allclose(norms, wanted, rtol=2e-5, atol=1e-44)
    alone = [clip_rows(row[None], clip) for row in rows]
    assert all(torch.equal(f[0], g) for (f, _), g in zip(alone, factors, strict=True))


@pytest.mark.parametrize("setting", [False, True])
def test_products_are_full_and_the_setting_comes_back(setting: bool) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = setting
    try:
        with full_precision_products(torch.device("cuda")):
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32 == setting
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before

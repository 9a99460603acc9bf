# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.engine.clipping.outer import OuterSum, gram_is_cheaper

SHAPES = [(1, 3, 4), (2, 30, 20), (6, 3, 4)]  # positions, inputs, outputs


def test_shapes_cover_all_three_ways() -> None:
    assert [p > 1 and gram_is_cheaper(p, i, o) for p, i, o in SHAPES] == [False, True, False]


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_and_sums(shape: tuple[int, int, int]) -> None:
    positions, inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(10, positions, inputs, dtype=torch.float64, generator=generator)
    g = torch.randn(10, positions, outputs, dtype=torch.float64, generator=generator)
    formed = torch.einsum("nto,nti->noi", g, a)
    outer = OuterSum(a, g)
    torch.testing.assert_close(outer.squared_norms(), formed.square().sum((1, 2)))
    factors = torch.rand(2, 5, dtype=torch.float64, generator=generator)
    expected = torch.einsum("kb,kboi->koi", factors, formed.view(2, 5, outputs, inputs))
    torch.testing.assert_close(outer.clipped_sum(factors), expected)


def test_cancelling_positions_do_not_hide_a_gradient() -> None:
    """Two positions that almost cancel: in 32 bits the Gram terms would lose the rest."""
    a = torch.randn(1, 1, 400, generator=torch.Generator().manual_seed(0))
    g = torch.randn(1, 1, 400, generator=torch.Generator().manual_seed(1))
    a, g = torch.cat([a, a * (1 + 1e-5)], 1), torch.cat([g, -g], 1)
    assert gram_is_cheaper(2, 400, 400)
    exact = torch.bmm(g.double().transpose(1, 2), a.double()).square().sum((1, 2))
    found = OuterSum(a, g).squared_norms().double()
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=0.0)

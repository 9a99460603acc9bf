# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpcohort_lab.schemes.randomiser import randomise, report_length


def reports_of(gradient, *, clip, e0, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    raw = torch.tensor(gradient, dtype=torch.float64).expand(count, -1)
    normals = torch.randn(raw.shape, generator=generator, dtype=torch.float64)
    uniforms = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    epsilons = torch.full((count,), e0)
    return randomise(raw, clip=clip, local_epsilon=epsilons, normals=normals, uniforms=uniforms)


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [((0.3, 0.0, 0.0), (0.3, 0, 0)), ((3.0, -4.0, 0.0), (0.6, -0.8, 0)), ((0, 0, 0), (0, 0, 0))],
    ids=["inside", "clipped", "zero"],
)
def test_reports_are_unbiased_for_the_clipped_gradient(gradient, expected):
    count = 200_000
    reports = reports_of(gradient, clip=1.0, e0=1.5, count=count)
    spread = report_length(clip=1.0, local_epsilon=1.5, dimension=3) / math.sqrt(count)
    assert np.abs(reports.mean(0).numpy() - expected).max() < 5 * spread


@pytest.mark.parametrize("e0", [0.2, 1.0, 3.0])
def test_the_odds_of_any_set_of_directions_change_by_at_most_e0(e0):
    count = 400_000
    one = reports_of((1.0, 0.0), clip=1.0, e0=e0, count=count, seed=1)
    two = reports_of((-1.0, 0.0), clip=1.0, e0=e0, count=count, seed=2)
    share = [float((reports[:, 0] > 0).double().mean()) for reports in (one, two)]
    # The half space is the worst set: its odds are exactly e^e0 : 1.
    error = 5 * 0.5 / math.sqrt(count)
    assert share[0] == pytest.approx(1 / (1 + math.exp(-e0)), abs=error)
    assert share[1] == pytest.approx(1 / (1 + math.exp(e0)), abs=error)
    for low, high in ((0.0, 0.3), (0.3, 0.9), (-0.5, 0.5)):
        scale = report_length(clip=1.0, local_epsilon=e0, dimension=2)
        inside = [
            float(((r[:, 1] / scale > low) & (r[:, 1] / scale < high)).double().mean())
            for r in (one, two)
        ]
        assert abs(inside[0] - inside[1]) < 2 * error  # the side direction tells nothing


def test_a_gradient_that_is_not_finite_reports_nothing_but_noise():
    raw = torch.tensor([[math.nan, 1.0], [math.inf, 0.0]])
    reports = randomise(
        raw,
        clip=1.0,
        local_epsilon=torch.ones(2),
        normals=torch.ones(2, 2),
        uniforms=torch.full((2, 2), 0.4),
    )
    assert torch.isfinite(reports).all()

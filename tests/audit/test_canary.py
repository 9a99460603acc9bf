# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpcohort.audit import Claim, canary


def leaking(factor: float) -> Any:
    """A training that clips rightly and has ``factor`` times the claimed noise."""

    def training(
        gradients: Any,
        *,
        claim: Any,
        batch_size: int,
        seed: int,
        cohorts: Any,
        local_steps: int = 1,
    ) -> Any:
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped = gradients / np.maximum(1.0, norms / claim.clip)
        noise = np.random.default_rng(seed).standard_normal((*cohorts.shape, gradients.shape[1]))
        return (clipped.sum(0) + factor * claim.noise_multiplier * claim.clip * noise) / batch_size

    return training


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_it_is_calibrated_at_the_worst_case(sampler: str) -> None:
    """A training that uses its claim to the full fails a 10 % test about one time in ten."""
    claim = Claim(sampler=sampler, clip=2.0, noise_multiplier=0.5)
    failed = [
        not canary(leaking(1.0), claim, seed=s, updates=50, false_alarm_rate=0.1).passed
        for s in range(200)
    ]
    assert 5 <= sum(failed) <= 40


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.7])
def test_too_little_noise_is_seen(factor: float) -> None:
    claim = Claim(sampler="poisson", noise_multiplier=0.5)
    assert canary(leaking(1.0), claim).passed
    assert not canary(leaking(factor), claim).passed

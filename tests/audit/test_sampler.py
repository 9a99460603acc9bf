# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpcohort.audit import Claim, sampler


def batches_of(draw: Any) -> Any:
    """A training without noise whose batches are drawn as given."""

    def training(
        gradients: Any,
        *,
        claim: Any,
        batch_size: int,
        seed: int,
        cohorts: Any,
        local_steps: int = 1,
    ) -> Any:
        rng = np.random.default_rng(seed)
        used = np.array(
            [[draw(rng, len(gradients), batch_size) for _ in row] for row in cohorts], dtype=float
        )
        return used @ gradients / batch_size

    return training


def poisson(rng: Any, size: int, batch: int) -> Any:
    return rng.random(size) < batch / size


def fixed(rng: Any, size: int, batch: int) -> Any:
    return rng.permutation(size) < batch


@pytest.mark.parametrize("right", [poisson, fixed])
def test_it_is_calibrated(right: Any) -> None:
    claim = Claim(sampler=right.__name__)
    failed = [
        not sampler(batches_of(right), claim, seed=s, false_alarm_rate=0.1).passed
        for s in range(60)
    ]
    assert sum(failed) <= 15


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rng, size, batch: rng.random(size) < 1.05 * batch / size,
        lambda rng, size, batch: rng.random(size) < np.linspace(0.5, 1.5, size) * batch / size,
        lambda rng, size, batch: rng.random(size // 2).repeat(2) < batch / size,
        lambda rng, size, batch: np.bincount(rng.integers(0, size, batch), minlength=size),
    ],
)
@pytest.mark.parametrize("claimed", ["poisson", "fixed"])
def test_other_samplers_are_seen(wrong: Any, claimed: str) -> None:
    assert not sampler(batches_of(wrong), Claim(sampler=claimed)).passed

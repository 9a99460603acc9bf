# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np

from dpcohort.audit.claims import Claim
from dpcohort.audit.freshness import freshness

CLAIM = Claim(sampler="fixed")


def training(
    gradients: Any, *, claim: Any, batch_size: int, seed: int, cohorts: Any, local_steps: int = 1
) -> Any:
    shape = (local_steps, *cohorts.shape, gradients.shape[1])
    return np.random.default_rng(seed).standard_normal(shape).sum(0) / batch_size


def test_it_is_calibrated() -> None:
    failed = [
        not freshness(training, CLAIM, seed=2 * s, dimension=400, false_alarm_rate=0.1).passed
        for s in range(150)
    ]
    assert 3 <= sum(failed) <= 30


def test_one_seed_for_everything_is_seen() -> None:
    def stuck(gradients: Any, *, seed: int, **rest: Any) -> Any:
        return training(gradients, seed=0, **rest)

    finding = freshness(stuck, CLAIM)
    assert not finding.passed
    assert "another seed" in finding.detail

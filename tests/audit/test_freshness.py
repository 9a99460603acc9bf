# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np

from dpcohort.audit import Claim, freshness

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


def test_two_steps_of_one_noise_are_seen_where_no_seed_repeats() -> None:
    entropy = np.random.default_rng()

    def doubled(gradients: Any, *, local_steps: int = 1, seed: int, **rest: Any) -> Any:
        return local_steps * training(gradients, seed=int(entropy.integers(2**60)), **rest)

    finding = freshness(doubled, CLAIM)
    assert not finding.passed
    assert "two steps" in finding.detail


def test_a_vector_that_repeats_within_itself_is_seen() -> None:
    def tiled(gradients: Any, **rest: Any) -> Any:
        quarter = training(gradients[:, : gradients.shape[1] // 4], **rest)
        return np.tile(quarter, (1, 1, 4))

    finding = freshness(tiled, CLAIM)
    assert not finding.passed
    assert "with itself" in finding.detail

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpcohort.audit import Claim, EngineUnderTest, noise_law, noise_tail

CLAIM = Claim(sampler="poisson", clip=2.0, noise_multiplier=1.5)


def noise_of(law: Any) -> Any:
    """A training of zero gradients whose noise follows the given law."""

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
        shape = (*cohorts.shape, gradients.shape[1])
        return law(rng, shape) * claim.noise_multiplier * claim.clip / batch_size

    return training


def test_it_is_calibrated() -> None:
    """At a level of 10 % at most about 10 % of correct trainings fail."""
    correct = noise_of(lambda rng, shape: rng.standard_normal(shape))
    failed = [
        not noise_law(correct, CLAIM, seed=s, dimension=500, false_alarm_rate=0.1).passed
        for s in range(100)
    ]
    assert 0 < sum(failed) <= 22


@pytest.mark.parametrize(
    "law",
    [
        lambda rng, shape: 1.03 * rng.standard_normal(shape),
        lambda rng, shape: rng.laplace(size=shape) / np.sqrt(2),
        lambda rng, shape: np.full(shape, np.nan),
        lambda rng, shape: (
            rng.standard_normal(shape) * np.linspace(0.9, 1.1, shape[0])[:, None, None]
        ),
    ],
)
def test_other_laws_are_seen(law: Any) -> None:
    assert not noise_law(noise_of(law), CLAIM).passed


def test_the_tail_is_calibrated() -> None:
    correct = noise_of(lambda rng, shape: rng.standard_normal(shape))
    failed = [
        not noise_tail(correct, CLAIM, seed=s, normals=1 << 16, false_alarm_rate=0.2).passed
        for s in range(60)
    ]
    assert sum(failed) <= 20


@pytest.mark.parametrize(
    "law",
    [
        lambda rng, shape: np.clip(rng.standard_normal(shape), -4.4, 4.4),
        lambda rng, shape: rng.standard_normal(shape) + 6 * (rng.random(shape) < 1e-5),
    ],
    ids=["too few", "too many"],
)
def test_counts_beyond_see_a_wrong_tail(law: Any) -> None:
    """The law itself, without its tail, would pass."""
    assert noise_law(noise_of(law), CLAIM).passed
    finding = noise_tail(noise_of(law), CLAIM, normals=1 << 23)
    assert not finding.passed
    assert "wrong number beyond" in finding.detail


def test_a_simulation_in_32_bits_has_the_grain_of_24() -> None:
    grained = noise_tail(EngineUnderTest("batched", dtype=torch.float32), CLAIM)
    assert not grained.passed
    assert "24 bits" in grained.detail
    assert noise_tail(EngineUnderTest("batched"), CLAIM).passed

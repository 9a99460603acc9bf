# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpcohort.audit import Claim, EngineUnderTest, StepUnderTest, last_bits, predictability
from dpcohort.audit._predictability import linear_complexity

CLAIM = Claim(sampler="poisson", clip=0.7, noise_multiplier=1.3)


def releasing(values: Any) -> StepUnderTest:
    """A step that releases these multiples of C of its noise, plus its only gradient."""

    def step(gradients: Any, *, clip: float, noise_multiplier: float, **_: Any) -> Any:
        return values(gradients.sum(0) / clip, noise_multiplier) * clip / 2

    return StepUnderTest(step)


def test_the_complexity_of_a_register_is_its_length() -> None:
    state, bits = 0b1011011101, []
    for _ in range(200):  # x^10 + x^7 + 1
        bits.append(state & 1)
        state = (state >> 1) | (((state ^ (state >> 3)) & 1) << 9)
    assert linear_complexity(bits) == 10
    assert linear_complexity([0] * 50) == 0
    assert linear_complexity([0] * 49 + [1]) == 50


def test_random_bits_keep_the_level() -> None:
    """At most 2^(2l - n) of all sequences have complexity l or less."""
    bits = np.random.default_rng(0).integers(0, 2, (2000, 64))
    excess = np.array([64 - 2 * linear_complexity(row.tolist()) for row in bits])
    for least in (2, 4, 6):
        assert np.mean(excess >= least) <= 2.0**-least + 4 * np.sqrt(2.0**-least / 2000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["reference", "batched"])
def test_a_simulation_on_a_cpu_is_seen_through(kind: Any, dtype: torch.dtype) -> None:
    """Its noise is a Mersenne Twister's, which is why it is no deployment."""
    finding = predictability(EngineUnderTest(kind, dtype=dtype), CLAIM, vectors=1)
    assert not finding.passed
    assert finding.measured["linear complexity"] == 19937


def test_other_noise_is_at_chance(deployment: Any) -> None:
    finding = predictability(deployment, CLAIM)
    assert finding.passed
    assert abs(finding.measured["linear complexity"] - 20512) < 20


def test_noise_of_a_seed_is_no_deployment() -> None:
    def seeded(
        gradients: Any, *, clip: float, noise_multiplier: float, rng_seed: int, **_: Any
    ) -> Any:
        noise = np.random.default_rng(rng_seed).standard_normal(gradients.shape[1])
        return clip * noise_multiplier * noise / 2

    assert predictability(StepUnderTest(seeded), CLAIM).passed
    finding = predictability(StepUnderTest(seeded), replace(CLAIM, private=True))
    assert not finding.passed
    assert "one seed" in finding.detail


@pytest.mark.parametrize(
    ("unit", "dtype"),
    [(2.0**-24, np.float32), (2.0**-24, np.float64), (1e-3, np.float32), (7e-7, np.float64)],
)
def test_any_lattice_is_found(unit: float, dtype: Any) -> None:
    rng = np.random.default_rng(1)

    def lattice(total: Any, z: float) -> Any:
        noise = np.rint(z * rng.standard_normal(total.size) / unit)
        return (unit * (noise + np.trunc(total / unit))).astype(dtype)

    finding = last_bits(releasing(lattice), CLAIM)
    assert finding.passed, str(finding)


def test_a_lattice_of_the_noise_alone_is_not_enough() -> None:
    rng = np.random.default_rng(1)

    def beside(total: Any, z: float) -> Any:
        return np.rint(2**20 * z * rng.standard_normal(total.size)) / 2**20 + total

    finding = last_bits(releasing(beside), CLAIM)
    assert not finding.passed
    assert "not with a gradient" in finding.detail

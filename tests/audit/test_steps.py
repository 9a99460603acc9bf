# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcohort.audit import Claim, StepUnderTest, sampler, step_by_name
from dpcohort.errors import InputError

CLAIM = Claim(sampler="poisson", clip=2.0, noise_multiplier=0.5)
SETTINGS: dict[str, Any] = {
    "claim": CLAIM, "batch_size": 2, "seed": 3, "cohorts": np.array([[0, 1], [1, 1]]),
}  # fmt: skip

STEPS = """
import numpy as np

def plain(gradients, *, clip, noise_multiplier, batch_size, rng_seed):
    return np.full(gradients.shape[1], rng_seed % 1000, dtype=float)

def whole(gradients, *, claim, batch_size, seed, cohorts, local_steps=1):
    return np.zeros((*cohorts.shape, gradients.shape[1]))

def failing(gradients, *, rng_seed, **_):
    return 1 / 0

def short(gradients, *, rng_seed, **_):
    return np.zeros(2)

def wordy(gradients, *, rng_seed, **_):
    return "noise"

def other(batch):
    return batch
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"steps_of_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    return name


def told(gradients: Any, *, rng_seed: int, **given: Any) -> Any:
    return np.array([float(rng_seed), given["clip"], given["noise_multiplier"], len(gradients)])


def test_the_step_is_given_the_claim_and_a_seed_of_its_own() -> None:
    updates = StepUnderTest(told)(np.zeros((6, 4)), **SETTINGS)
    assert updates.shape == (2, 2, 4)
    assert np.all(updates[..., 1:] == [2.0, 0.5, 6.0])
    assert np.unique(updates[..., 0]).size == 4
    again = StepUnderTest(told)(np.zeros((6, 4)), **SETTINGS)
    np.testing.assert_array_equal(again, updates)


def test_an_update_is_the_sum_of_its_steps_and_a_sum_is_divided() -> None:
    one = StepUnderTest(told)(np.zeros((6, 4)), **SETTINGS)
    two = StepUnderTest(told)(np.zeros((6, 4)), local_steps=2, **SETTINGS)
    assert np.all(two[..., 1] == 2 * one[..., 1])
    divided = StepUnderTest(told, returns="sum")(np.zeros((6, 4)), **SETTINGS)
    np.testing.assert_array_equal(divided, one / 2)


def test_a_step_without_a_sampler_gets_poisson_batches() -> None:
    def add_up(gradients: Any, *, batch_size: int, **_: Any) -> Any:
        return gradients.sum(0) / batch_size

    training = StepUnderTest(add_up, draws_batches=False)
    assert sampler(training, Claim(sampler="poisson")).passed
    assert not sampler(StepUnderTest(add_up), Claim(sampler="poisson")).passed


@pytest.mark.parametrize("name", ["plain", "whole"])
def test_both_forms_are_found_by_name(module: str, name: str) -> None:
    assert step_by_name(f"{module}:{name}")(np.zeros((4, 3)), **SETTINGS).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other", "rng_seed"),
        ("missing", "has no function"),
        ("failing", "ZeroDivisionError"),
        ("short", r"shape .* \(2,\)"),
        ("wordy", "numbers"),
    ],
)
def test_a_step_that_cannot_be_used_is_told(module: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        step_by_name(f"{module}:{name}")(np.zeros((4, 3)), **SETTINGS)

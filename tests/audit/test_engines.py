# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpcohort.audit import Claim, EngineUnderTest
from dpcohort.audit._claims import repeats
from dpcohort.errors import InputError

COHORTS = np.array([[0, 1, 0], [1, 1, 2]])


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_both_engines_show_the_same_updates(sampler: str) -> None:
    gradients = np.random.default_rng(0).standard_normal((6, 8))
    options: dict[str, Any] = {
        "claim": Claim(sampler=sampler), "batch_size": 3, "seed": 4, "cohorts": COHORTS,
        "local_steps": 2,
    }  # fmt: skip
    expected = EngineUnderTest("reference")(gradients, **options)
    for other in (EngineUnderTest("batched"), EngineUnderTest("batched", raw=True)):
        np.testing.assert_allclose(other(gradients, **options), expected, rtol=1e-9, atol=1e-12)


def test_gradients_are_the_inputs() -> None:
    gradients = np.eye(4) * [[0.5], [1.0], [2.0], [0.0]]
    update = EngineUnderTest("batched")(
        gradients,
        claim=Claim(sampler="fixed", noise_multiplier=0.0),
        batch_size=4,
        seed=0,
        cohorts=np.array([[0]]),
    )
    np.testing.assert_allclose(update[0, 0] * 4, [0.5, 1.0, 1.0, 0.0], atol=2e-5)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="kind"):
        EngineUnderTest("fast")  # type: ignore[arg-type]


def test_the_private_path_never_repeats() -> None:
    claim = Claim(sampler="poisson")
    for kind in ("reference", "batched"):
        assert repeats(EngineUnderTest(kind), claim)
        assert not repeats(EngineUnderTest(kind, private=True), claim)


def test_hostile_models_have_the_same_gradients() -> None:
    gradients = np.random.default_rng(0).standard_normal((4, 8))
    options: dict[str, Any] = {
        "claim": Claim(sampler="fixed"), "batch_size": 4, "seed": 4, "cohorts": np.array([[0]]),
    }  # fmt: skip
    engine = EngineUnderTest("batched")
    expected = engine(gradients, **options)
    assert len(engine.hostile) == 4
    for name, hostile in engine.hostile.items():
        np.testing.assert_allclose(hostile(gradients, **options), expected, err_msg=name)

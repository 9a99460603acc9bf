# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpcohort.audit import Claim, EngineUnderTest, erasure, sensitivity


def test_a_training_that_ignores_its_data_proves_nothing() -> None:
    def deaf(gradients: Any, *, cohorts: Any, **_: Any) -> Any:
        return np.zeros((*cohorts.shape, gradients.shape[1]))

    finding = sensitivity(deaf, Claim(sampler="poisson"))
    assert not finding.passed
    assert "never took part" in finding.detail


def test_what_is_not_a_number_is_not_bounded() -> None:
    def spoilt(gradients: Any, *, cohorts: Any, **_: Any) -> Any:
        return np.full((*cohorts.shape, gradients.shape[1]), np.nan)

    assert not sensitivity(spoilt, Claim(sampler="poisson")).passed


def test_a_clip_too_large_is_seen_where_no_seed_repeats(deployment: Any) -> None:
    def loose(gradients: Any, *, claim: Any, **rest: Any) -> Any:
        return 1.001 * deployment(gradients, claim=claim, **rest)

    claim = Claim(sampler="poisson")
    assert sensitivity(deployment, claim).passed
    finding = sensitivity(loose, claim)
    assert not finding.passed
    assert 1.0009 < finding.measured["influence"] < 1.0015


def test_no_record_erases_the_others() -> None:
    """The membership attack that a batch without one record's company would allow.

    The other engines are attacked with all tests at once, in ``test_suite.py``.
    """
    training = EngineUnderTest("reference", private=True)
    finding = erasure(training, Claim(sampler="poisson"), trials=18)
    assert finding.passed, str(finding)
    allowed = finding.measured["allowed"] + 3 * finding.measured["standard deviation"]
    assert finding.measured["accuracy"] < allowed


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_one_that_does_is_seen(deployment: Any, sampler: str) -> None:
    def erasing(gradients: Any, **rest: Any) -> Any:
        broken = not np.isfinite(gradients).all()
        return deployment(np.zeros_like(gradients) if broken else gradients, **rest)

    finding = erasure(erasing, Claim(sampler=sampler))
    assert not finding.passed
    assert finding.measured["accuracy"] > 0.97

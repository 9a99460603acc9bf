# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np

from dpcohort.audit.claims import Claim
from dpcohort.audit.sensitivity import sensitivity


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

# SPDX-License-Identifier: Apache-2.0
"""Empirical privacy tests of training steps: they look from outside and can refute a claim."""

from __future__ import annotations

from dpcohort.audit._canaries import canary
from dpcohort.audit._claims import Claim, Finding, PrivateTraining, rows_of_persons
from dpcohort.audit._distributed import DistributedClaim, masked_sum
from dpcohort.audit._noise import freshness, mean_noise, noise_law, noise_tail
from dpcohort.audit._one_run import one_run, one_run_p_value
from dpcohort.audit._predictability import last_bits, predictability
from dpcohort.audit._sampler import sampler
from dpcohort.audit._sensitivity import Isolation, erasure, isolation, sensitivity
from dpcohort.audit._suite import audit_training
from dpcohort.audit._under_test import (
    EngineUnderTest,
    GradientProbe,
    GuardUnderTest,
    ModelsUnderTest,
    StepUnderTest,
    step_by_name,
)

__all__ = [
    "Claim",
    "DistributedClaim",
    "EngineUnderTest",
    "Finding",
    "GradientProbe",
    "GuardUnderTest",
    "Isolation",
    "ModelsUnderTest",
    "PrivateTraining",
    "StepUnderTest",
    "audit_training",
    "canary",
    "erasure",
    "freshness",
    "isolation",
    "last_bits",
    "masked_sum",
    "mean_noise",
    "noise_law",
    "noise_tail",
    "one_run",
    "one_run_p_value",
    "predictability",
    "rows_of_persons",
    "sampler",
    "sensitivity",
    "step_by_name",
]

# SPDX-License-Identifier: Apache-2.0
"""Empirical privacy tests of training steps: they look from outside and can refute a claim."""

from __future__ import annotations

from dpcohort.audit.canary import canary
from dpcohort.audit.claims import Claim, Finding, PrivateTraining
from dpcohort.audit.engines import EngineUnderTest, GradientProbe
from dpcohort.audit.freshness import freshness
from dpcohort.audit.guards import GuardUnderTest
from dpcohort.audit.mean_noise import mean_noise
from dpcohort.audit.noise_law import noise_law, noise_tail
from dpcohort.audit.one_run import epsilon_lower_bound, one_run
from dpcohort.audit.predictability import last_bits, predictability
from dpcohort.audit.sampler import sampler
from dpcohort.audit.sensitivity import erasure, sensitivity
from dpcohort.audit.steps import StepUnderTest, step_by_name
from dpcohort.audit.suite import audit_training

__all__ = [
    "Claim",
    "EngineUnderTest",
    "Finding",
    "GradientProbe",
    "GuardUnderTest",
    "PrivateTraining",
    "StepUnderTest",
    "audit_training",
    "canary",
    "epsilon_lower_bound",
    "erasure",
    "freshness",
    "last_bits",
    "mean_noise",
    "noise_law",
    "noise_tail",
    "one_run",
    "predictability",
    "sampler",
    "sensitivity",
    "step_by_name",
]

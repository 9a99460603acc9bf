# SPDX-License-Identifier: Apache-2.0
"""Empirical privacy tests of training steps: they look from outside and can refute a claim."""

from __future__ import annotations

from dpcohort.audit.canary import canary
from dpcohort.audit.claims import Claim, Finding, PrivateTraining
from dpcohort.audit.engines import EngineUnderTest, GradientProbe
from dpcohort.audit.freshness import freshness
from dpcohort.audit.mean_noise import mean_noise
from dpcohort.audit.noise_law import noise_law
from dpcohort.audit.sampler import sampler
from dpcohort.audit.sensitivity import sensitivity
from dpcohort.audit.suite import audit_training

__all__ = [
    "Claim",
    "EngineUnderTest",
    "Finding",
    "GradientProbe",
    "PrivateTraining",
    "audit_training",
    "canary",
    "freshness",
    "mean_noise",
    "noise_law",
    "sampler",
    "sensitivity",
]

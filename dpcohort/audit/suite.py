# SPDX-License-Identifier: Apache-2.0
"""All five tests in one call."""

from __future__ import annotations

from dataclasses import replace

from dpcohort.audit.canary import canary
from dpcohort.audit.claims import Claim, Finding, PrivateTraining
from dpcohort.audit.freshness import freshness
from dpcohort.audit.noise_law import noise_law
from dpcohort.audit.sampler import sampler
from dpcohort.audit.sensitivity import sensitivity

__all__ = ["audit_training"]

_CANARY_MULTIPLIER = 0.5  # where the test sees most


def audit_training(
    training: PrivateTraining, claim: Claim, *, seed: int = 0, false_alarm_rate: float = 1e-7
) -> list[Finding]:
    """Run tests A to E.

    Args:
        training: what to test.
        claim: what it claims. Test C runs at noise multiplier 0.5 and test E at 0.001, where they
            see most; clip and sampler are the claim's.
        seed: seed for the training under test.
        false_alarm_rate: of each test; a correct training fails any of them with probability at
            most four times that (test B has none).

    Example:
        >>> from dpcohort.audit import EngineUnderTest
        >>> claim = Claim(sampler="poisson", clip=0.5, noise_multiplier=2.0)
        >>> [finding.passed for finding in audit_training(EngineUnderTest("batched"), claim)]
        [True, True, True, True, True]
    """
    loud = replace(claim, noise_multiplier=_CANARY_MULTIPLIER)
    return [
        noise_law(training, claim, seed=seed, false_alarm_rate=false_alarm_rate),
        sensitivity(training, claim, seed=seed),
        canary(training, loud, seed=seed, false_alarm_rate=false_alarm_rate),
        freshness(training, claim, seed=seed, false_alarm_rate=false_alarm_rate),
        sampler(training, claim, seed=seed, false_alarm_rate=false_alarm_rate),
    ]

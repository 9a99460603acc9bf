# SPDX-License-Identifier: Apache-2.0
"""All tests of a training in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from dpcohort.audit._canaries import canary
from dpcohort.audit._claims import Claim, Finding, PrivateTraining
from dpcohort.audit._distributed import example_plan, masked_sum
from dpcohort.audit._noise import freshness, noise_law, noise_tail
from dpcohort.audit._one_run import one_run
from dpcohort.audit._predictability import last_bits, predictability
from dpcohort.audit._sampler import sampler
from dpcohort.audit._sensitivity import erasure, sensitivity

_CANARY_MULTIPLIER = 0.5  # where the test sees most
_QUICK_NORMALS = 1 << 20

#: Numbers whose tail the full form counts: 32 are expected beyond 5.768.
FULL_NORMALS = 4_000_000_000


def audit_training(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    false_alarm_rate: float = 1e-7,
    full: bool = False,
    normals: int = FULL_NORMALS,
    on_finding: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Run tests A to E, J and K; for a private claim also G, H and I, for distributed noise L.

    Of persons B, C, E, J, K and L: noise is the same whoever is in a batch.

    (Test F, ``mean_noise``, is for trainings that show only the mean of their draws.)

    Args:
        training: what to test.
        claim: what it claims. Tests C, E and J run at noise multipliers of their own, where they
            see most; clip and sampler are the claim's.
        seed: seed for the training under test.
        false_alarm_rate: of each test; a correct training fails any of them with probability at
            most the sum over the findings.
        full: more of everything that gains from more, for minutes instead of seconds.
        normals: numbers whose tail the full form counts.
        on_finding: called with each finding as soon as it is there.

    Example:
        >>> from dpcohort.audit import EngineUnderTest
        >>> claim = Claim(sampler="poisson", clip=0.5, noise_multiplier=2.0)
        >>> findings = audit_training(EngineUnderTest("reference"), claim)
        >>> "".join(finding.test[0] for finding in findings if finding.passed)
        'ABCDEJK'
    """
    loud = replace(claim, noise_multiplier=_CANARY_MULTIPLIER)
    common: Any = {"seed": seed, "false_alarm_rate": false_alarm_rate}

    def tests() -> Iterator[Finding]:
        of_records = claim.rows == 1
        if of_records:
            yield noise_law(training, claim, **common)
        yield sensitivity(training, claim, **common)
        yield canary(training, loud, updates=4000 if full else 400, **common)
        if of_records:
            yield freshness(training, claim, **common)
        if getattr(training, "draws_batches", True):
            yield sampler(training, claim, **common)
        if claim.private and of_records:
            yield noise_tail(training, claim, normals=normals if full else _QUICK_NORMALS, **common)
            yield predictability(training, claim, vectors=20 if full else 2, **common)
            yield last_bits(training, claim, seed=seed)
        yield erasure(training, claim, trials=400 if full else 36, **common)
        yield one_run(training, claim, canaries=2000 if full else 500, **common)
        if getattr(training, "distributed", False):
            plan = example_plan(claim.sampler, claim.clip)
            sums = partial(training.sums, unit=claim)  # type: ignore[attr-defined]
            yield masked_sum(sums, plan, **common)

    findings = []
    for finding in tests():
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)
    return findings

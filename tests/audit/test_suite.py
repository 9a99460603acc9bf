# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpcohort.audit import (
    Claim,
    EngineUnderTest,
    audit_training,
    canary,
    freshness,
    noise_law,
    sampler,
    sensitivity,
)

CLAIM = Claim(sampler="poisson", clip=0.7, noise_multiplier=1.3)
TESTS: dict[str, Any] = {
    "A": noise_law, "B": sensitivity, "C": canary, "D": freshness, "E": sampler,
}  # fmt: skip

#: Every audit of a correct engine in this test suite, the doctest included.
AUDITS = [
    ("reference", "poisson", {}),
    ("reference", "fixed", {}),
    ("batched", "poisson", {}),
    ("batched", "fixed", {}),
    ("batched", "poisson", {"slots_per_pass": 2}),
    ("batched", "fixed", {"raw": True}),
]


@pytest.mark.parametrize(("kind", "sampling", "options"), AUDITS)
def test_correct_engines_pass(kind: Any, sampling: str, options: dict[str, Any]) -> None:
    findings = audit_training(
        EngineUnderTest(kind, **options), replace(CLAIM, sampler=sampling), seed=1
    )
    assert [finding.test[0] for finding in findings] == list("ABCDE")
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))
    # All audits together, one more for the doctest, stay below the promised rate.
    each = sum(finding.false_alarm_rate for finding in findings)
    assert each * (len(AUDITS) + 1) < 1e-5


def test_broken_engines_are_caught(broken: dict[str, Any]) -> None:
    claim = replace(CLAIM, sampler=broken["sampler"])
    if broken["test"] == "C":
        claim = replace(claim, noise_multiplier=0.5)
    finding = TESTS[broken["test"]](EngineUnderTest(broken["engine"]), claim, seed=1)
    assert not finding.passed, str(finding)

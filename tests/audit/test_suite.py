# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dpcohort.audit import (
    Claim,
    EngineUnderTest,
    GuardUnderTest,
    audit_training,
    canary,
    erasure,
    freshness,
    last_bits,
    mean_noise,
    noise_law,
    noise_tail,
    predictability,
    sampler,
    sensitivity,
)

CLAIM = Claim(sampler="poisson", clip=0.7, noise_multiplier=1.3)
TESTS: dict[str, Any] = {
    "A": noise_law, "B": sensitivity, "C": canary, "D": freshness, "E": sampler, "G": noise_tail,
    "H": predictability, "I": last_bits, "J": erasure,
}  # fmt: skip

#: Every audit of a correct engine in this test suite, the doctest included.
AUDITS = [
    ("reference", "fixed", {}),  # and with Poisson batches in the doctest
    ("batched", "poisson", {}),
    ("batched", "fixed", {"raw": True, "draws_per_pass": 2}),
]


@pytest.mark.parametrize(("kind", "sampling", "options"), AUDITS)
def test_correct_engines_pass(kind: Any, sampling: str, options: dict[str, Any]) -> None:
    findings = audit_training(
        EngineUnderTest(kind, **options), replace(CLAIM, sampler=sampling), seed=1
    )
    assert [finding.test[0] for finding in findings] == list("ABCDEJK")
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))
    # All audits together, one more for the doctest, stay below the promised rate.
    each = sum(finding.false_alarm_rate for finding in findings)
    assert each * (len(AUDITS) + 1) < 1e-5


def test_the_private_path_passes() -> None:
    """The regression test of noise that can be subtracted, ends early or is a float."""
    training = EngineUnderTest("batched", private=True, dtype=torch.float32)
    findings = audit_training(training, replace(CLAIM, private=True))
    assert [finding.test[0] for finding in findings] == list("ABCDEGHIJK")
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


@pytest.mark.parametrize(
    "training",
    [EngineUnderTest("reference", private=True, dtype=torch.float32), GuardUnderTest()],
    ids=["reference", "guard"],
)
def test_slow_private_paths_pass_what_is_their_own(training: Any) -> None:
    claim = replace(CLAIM, private=True)
    for test in (noise_tail, predictability, last_bits, freshness, sensitivity):
        finding = test(training, claim)
        assert finding.passed, str(finding)


def test_a_correct_deployment_passes(deployment: Any) -> None:
    findings = audit_training(deployment, replace(CLAIM, private=True))
    assert [finding.test[0] for finding in findings] == list("ABCDEGHIJK")
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))
    assert sum(finding.false_alarm_rate for finding in findings) < 1e-6


def test_broken_deployments_are_caught(broken_step: Any) -> None:
    training, letter = broken_step
    finding = TESTS[letter](training, replace(CLAIM, private=True))
    assert finding.test[0] == letter
    assert not finding.passed, str(finding)


@pytest.mark.parametrize("options", [{}, {"draws_per_pass": 2}, {"raw": True}], ids=str)
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_engine_on_a_gpu_passes(cuda: str, sampling: str, options: dict[str, Any]) -> None:
    training = EngineUnderTest("batched", device=cuda, **options)
    findings = audit_training(training, replace(CLAIM, sampler=sampling), seed=1)
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


@pytest.mark.parametrize("kind", ["reference", "batched"])
def test_the_private_path_on_a_gpu_passes(cuda: str, kind: Any) -> None:
    training = EngineUnderTest(kind, private=True, device=cuda, dtype=torch.float32)
    findings = audit_training(training, replace(CLAIM, private=True))
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_merged_noise_on_a_gpu_passes(cuda: str, sampling: str) -> None:
    claim = replace(CLAIM, sampler=sampling)
    training = EngineUnderTest("batched", device=cuda, merged_noise=True)
    finding = mean_noise(training, claim, seed=1)
    assert finding.passed, str(finding)


def test_broken_engines_are_caught(broken: dict[str, Any]) -> None:
    claim = replace(CLAIM, sampler=broken["sampler"])
    fewer: dict[str, Any] = {}
    if broken["test"] == "C":
        claim, fewer = replace(claim, noise_multiplier=0.5), {"updates": 100}
    engine = EngineUnderTest(broken["engine"])
    # Without the hostile models that it offers: these faults are in all.
    finding = TESTS[broken["test"]](lambda *a, **k: engine(*a, **k), claim, seed=1, **fewer)
    assert not finding.passed, str(finding)

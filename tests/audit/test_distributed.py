# SPDX-License-Identifier: Apache-2.0
"""Distributed noise under audit: what is right passes, and each of many faults is found."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from dpcohort.accounting import Contract
from dpcohort.audit import (
    Claim,
    DistributedClaim,
    EngineUnderTest,
    Finding,
    audit_training,
    erasure,
    freshness,
    last_bits,
    masked_sum,
    noise_law,
    noise_tail,
    predictability,
    sensitivity,
)
from dpcohort.audit import _suite as suite
from dpcohort.audit._distributed import example_plan
from dpcohort.engine import Lattice, Streams
from dpcohort.engine import _batched as batched
from dpcohort.engine import _experiment as experiment
from dpcohort.engine import _reference as reference
from dpcohort.engine._lattice import release
from dpcohort.plan import Plan
from dpcohort.planning import _noise as noise

CLAIM = Claim(sampler="poisson", clip=0.7, noise_multiplier=1.3)
TESTS: dict[str, Any] = {"B": sensitivity, "H": predictability, "I": last_bits}
DEPLOYED: dict[str, Any] = {"private": True, "dtype": torch.float32}


@cache
def plan_of(sampler: str) -> Plan:
    return example_plan(sampler, CLAIM.clip)


def audited(claim: Any = None, *, kind: Any = "batched", **options: Any) -> Any:
    training = EngineUnderTest(kind, distributed=True, **options)
    return masked_sum(training.sums, claim or plan_of("poisson"), seed=1, dimension=2000)


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
@pytest.mark.parametrize(
    "options",
    [{}, {"kind": "reference"}, {"draws_per_pass": 3}, DEPLOYED],
    ids=["batched", "reference", "rows", "private"],
)
def test_sums_keep_to_the_plan(sampler: str, options: Any) -> None:
    finding = audited(plan_of(sampler), **options)
    assert finding.passed, str(finding)


def test_the_audit_counts_on_as_many_as_the_contract() -> None:
    claim = DistributedClaim.of(example_plan())
    training = replace(claim.training, cohort_size=26)
    contract = replace(claim.contract, colluding=0.28, dropouts=0)  # 7 of 25, as it is written
    assert replace(claim, training=training, contract=contract).honest == 19


def test_distributed_simulations_pass_what_is_asked_of_all() -> None:
    training = EngineUnderTest("batched", distributed=True)
    for test in (noise_law, sensitivity, freshness):
        finding = test(training, CLAIM, seed=1)
        assert finding.passed, str(finding)


def test_distributed_private_runs_pass_what_is_asked_of_deployments() -> None:
    claim = replace(CLAIM, private=True)
    training = EngineUnderTest("batched", distributed=True, **DEPLOYED)
    for test in (noise_law, freshness, noise_tail, predictability, last_bits, erasure):
        finding = test(training, claim)
        assert finding.passed, str(finding)


def test_the_suite_asks_for_sums_where_noise_is_distributed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Finding(test="-", passed=True, detail="", false_alarm_rate=0.0)
    for name in (
        "noise_law",
        "sensitivity",
        "canary",
        "freshness",
        "sampler",
        "erasure",
        "one_run",
    ):
        monkeypatch.setattr(suite, name, lambda *_, **__: other)
    found = [
        audit_training(EngineUnderTest("batched", distributed=distributed), CLAIM)[-1]
        for distributed in (True, False)
    ]
    assert [finding.test[0] for finding in found] == ["L", "-"]
    assert found[0].passed, str(found[0])


@pytest.mark.parametrize("options", [{}, DEPLOYED], ids=["seeded", "private"])
def test_distributed_noise_on_a_gpu_passes(cuda: str, options: dict[str, Any]) -> None:
    training = EngineUnderTest("batched", distributed=True, device=cuda, **options)
    findings = audit_training(training, replace(CLAIM, private=bool(options)), seed=1)
    assert findings[-1].test[0] == "L"
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


# --- faults -----------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], "DistributedClaim | Plan | None"]


def _unchecked(patch: pytest.MonkeyPatch) -> DistributedClaim:
    """An engine that believes its plan, and what the plan claims."""
    patch.setattr(noise, "_check_cohort", lambda *_: None)
    return DistributedClaim.of(plan_of("poisson"))


def _with_distributed(claim: DistributedClaim, **changed: Any) -> DistributedClaim:
    return replace(claim, distributed=replace(claim.distributed, **changed))


def _shares(change: Callable[[Any], Any]) -> Fault:
    """Engines that see other shares than the plan's."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        _cohorts(patch, lambda one: replace(one, shares=change(one.shares)))

    return apply


def _weights(change: Callable[[Any], Any]) -> Fault:
    def apply(patch: pytest.MonkeyPatch) -> None:
        _cohorts(patch, lambda one: replace(one, weights=change(one.weights)))

    return apply


def _cohorts(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    right = experiment.cohort_of
    for module in ("dpcohort.engine._experiment", "dpcohort.audit._under_test"):
        patch.setattr(f"{module}.cohort_of", lambda *given: change(right(*given)))


def _share_too_small_in_the_plan(patch: pytest.MonkeyPatch) -> DistributedClaim:
    claim = _unchecked(patch)
    return _with_distributed(claim, shares=0.98 * claim.distributed.shares)


def _dropouts_counted(patch: pytest.MonkeyPatch) -> DistributedClaim:
    """Shares that carry z only if those who may vanish stay."""
    claim = _unchecked(patch)
    factor = math.sqrt(3 / 4)
    claim = replace(claim, alone_multipliers=claim.alone_multipliers * factor)
    return _with_distributed(claim, shares=claim.distributed.shares * factor)


def _colluders_counted(patch: pytest.MonkeyPatch) -> Plan:
    patch.setattr(Contract, "honest", lambda self, size: size - self.dropouts)
    return example_plan("poisson", CLAIM.clip)


def _weight_above_its_bound(patch: pytest.MonkeyPatch) -> DistributedClaim:
    claim = _unchecked(patch)
    weights = claim.distributed.weights.copy()
    weights[0] *= 1.02
    return _with_distributed(claim, weights=weights)


def _repeated_member(patch: pytest.MonkeyPatch) -> DistributedClaim:
    claim = _unchecked(patch)
    cohorts = claim.schedule.cohorts.copy()
    cohorts[1, 0] = cohorts[1, 1]
    return replace(claim, schedule=replace(claim.schedule, cohorts=cohorts))


def _public_share_forgotten(patch: pytest.MonkeyPatch) -> None:
    _cohorts(patch, lambda one: replace(one, shares=np.where(one.clients == 7, 0.0, one.shares)))


def _same_in_every_round(patch: pytest.MonkeyPatch) -> None:
    right = experiment.merged_noise_
    patch.setattr(
        experiment,
        "merged_noise_",
        lambda mean, spread, streams, round: right(mean, spread, streams, round=0),
    )


def _copied_block(patch: pytest.MonkeyPatch) -> None:
    right = experiment.merged_noise_

    def broken(mean: Any, spread: float, streams: Any, *, round: int) -> Any:
        noise, part = right(0 * mean, spread, streams, round=round), mean.numel() // 4
        noise[2 * part : 3 * part] = noise[:part]
        return mean.add_(noise)

    patch.setattr(experiment, "merged_noise_", broken)


def _noise_of_one_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(experiment, "merged_std", lambda stds, alpha: alpha * stds[0] / stds.size)


def _noise_of_the_budget(patch: pytest.MonkeyPatch) -> None:
    """Noise of each member's own multiplier, as where trust is local."""
    _cohorts(patch, lambda one: replace(one, shares=one.noise_stds / CLAIM.clip))


def _realised_batch(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, step: int) -> float:
        return float(self.cohort.weights[self.position]) / max(1, self.rows(step).size)

    patch.setattr(batched.Draw, "scale", broken)


def _private(change: Callable[..., Any]) -> Fault:
    """Engines whose private sums are released by another function."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        right = experiment.release_sum
        for module in (batched, reference):
            patch.setattr(
                module, "release_sum", lambda *given, **kept: change(right, *given, **kept)
            )

    return apply


def _only_where_there_are_records(right: Any, total: Any, *rest: Any, dtype: Any) -> Any:
    if not total.any():
        return total.to(dtype)
    return right(total, *rest, dtype=dtype)


def _float_noise(right: Any, total: Any, cohort: Any, one: Any, *, dtype: Any) -> Any:
    level, _, exponent = experiment._common_lattice(cohort, one.plan)
    unit = math.ldexp(level * CLAIM.clip, -exponent)
    return ((total + 2.0**exponent * torch.randn(total.shape)) * unit).to(dtype)


def _seeded_key(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *, round: int, client: int, draw: int = 0, step: int = 0) -> bytes:
        return hashlib.sha256(f"{round} {client} {draw} {step}".encode()).digest()

    patch.setattr(Streams, "noise_key", broken)


def _key_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Streams, "noise_key", lambda self, **_: b"k" * 32)


def _clip_after_scaling(patch: pytest.MonkeyPatch) -> None:
    """Every member's weighted gradients are held to the loudest one's bound."""
    right = experiment.member_lattices

    def broken(cohort: Any, plan: Any) -> Any:
        loudest = int(np.argmax(cohort.weights / cohort.batch_sizes))
        return [right(cohort, plan)[loudest]] * len(cohort)

    for module in (batched, reference):
        patch.setattr(module, "member_lattices", broken)


def _rounded_after_the_clip(patch: pytest.MonkeyPatch) -> None:
    """Records are rounded to the nearest point of a coarse lattice, which may be a longer one."""

    def rounded(self: Any, parts: Any, there: Any = None) -> Any:
        rows = [
            torch.einsum("rm,rn->rmn", *part).flatten(1) if len(part) == 2 else part[0]
            for part in parts
        ]
        gradients = torch.cat([row.flatten(1).double() for row in rows], 1)
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
        kept = (gradients / norms).nan_to_num(0.0, 0.0, 0.0)
        total = ((8 * kept).round() / 8 * self.bound).sum(0).long()
        return list(torch.split(total, [row.flatten(1).shape[1] for row in rows]))

    patch.setattr(Lattice, "clipped_sums", rounded)


def _half_a_bit_less(patch: pytest.MonkeyPatch) -> None:
    def broken(totals: Any, exponents: Any, keys: Any, **rest: Any) -> Any:
        return release(totals, [e - 1 for e in exponents], keys, **rest)

    patch.setattr(experiment, "release", broken)


#: Name of the fault: how to break the plan or the engine, the test that must see it, and whether
#: the private path is broken or the simulation.
FAULTS: dict[str, tuple[Fault, str, bool]] = {
    "share too small in the plan": (_share_too_small_in_the_plan, "L", False),
    "share too small in the engine": (_shares(lambda s: 0.97 * s), "L", False),
    # Fresh noise in every run: a fault so large that chance cannot hide it.
    "share too small in the private engine": (_shares(lambda s: 0.9 * s), "L", True),
    "share of a public member forgotten": (_public_share_forgotten, "L", False),
    "noise of drop-outs counted": (_dropouts_counted, "L", False),
    "h counted too high": (_colluders_counted, "L", False),
    "weight above its bound": (_weight_above_its_bound, "L", False),
    "weight of another member": (_weights(lambda g: np.roll(g, 1)), "L", False),
    "no weight in the engine": (_weights(np.ones_like), "L", False),
    "no weight in the private engine": (_weights(np.ones_like), "L", True),
    "repeated member": (_repeated_member, "L", False),
    "noise of one member": (_noise_of_one_member, "L", False),
    "noise of each member's budget": (_noise_of_the_budget, "L", False),
    "noise reused between rounds": (_same_in_every_round, "L", False),
    "key kept between rounds": (_key_kept, "L", True),
    "one block of the noise copied": (_copied_block, "L", False),
    "realised batch as the denominator": (_realised_batch, "B", False),
    "clip after scaling": (_clip_after_scaling, "L", True),
    "rounding to the lattice not paid for": (_rounded_after_the_clip, "L", True),
    "noise only where there are records": (_private(_only_where_there_are_records), "L", True),
    "noise one power of two too small": (_half_a_bit_less, "L", True),
    "floating-point noise": (_private(_float_noise), "I", True),
    "noise from a seed": (_seeded_key, "H", True),
}


@pytest.mark.parametrize("name", FAULTS, ids=lambda name: name.replace(" ", "_"))
def test_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, letter, private = FAULTS[name]
    plan_of("poisson")  # as it is, before anything is broken
    monkeypatch.setitem(sensitivity.__globals__, "_ROUNDS", 15)  # faults this large show in few
    claim, options = fault(monkeypatch), DEPLOYED if private else {}
    if letter == "L":
        finding = audited(claim, **options)
    else:
        training = EngineUnderTest("batched", distributed=True, **options)
        alone: Any = lambda *a, **k: training(*a, **k)  # noqa: E731, without hostile models
        finding = TESTS[letter](alone, replace(CLAIM, private=private), seed=1)
    assert finding.test[0] == letter
    assert not finding.passed, str(finding)

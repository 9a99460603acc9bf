# SPDX-License-Identifier: Apache-2.0
"""Audits by persons: a person with 40 rows, in trainings that clip persons and that clip rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from dpcohort.audit import (
    Claim,
    EngineUnderTest,
    GuardUnderTest,
    ModelsUnderTest,
    StepUnderTest,
    audit_training,
    canary,
    isolation,
    masked_sum,
    one_run,
    sampler,
    sensitivity,
)
from dpcohort.audit import _under_test as under_test
from dpcohort.audit._adversarial_models import Adversary, Plain
from dpcohort.audit._distributed import example_plan
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.engine import _reference as reference
from dpcohort.engine.clipping import per_example_gradients
from dpcohort.models._persons import PersonModel

CLAIM = Claim(sampler="poisson", rows=40)


def alone(training: Any) -> Any:
    """Without the hostile models that it offers."""
    run: Any = partial(training)
    run.person_rows = training.person_rows
    return run


@pytest.fixture
def engine_that_clips_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Persons are drawn, and each of their rows is clipped for itself."""

    def by_row(model: Any, loss: Any, *, vectorised: bool) -> Any:
        if not isinstance(model, PersonModel):
            return per_example_gradients(model, loss, vectorised=vectorised)
        own = per_example_gradients(model.model, loss.of_rows, vectorised=vectorised)

        def gradients(weights: Any, inputs: Any, targets: Any) -> Any:
            there = targets.flatten() >= 0
            return own(weights, inputs.flatten(0, 1)[there], targets.flatten()[there])

        return gradients

    monkeypatch.setattr(reference, "per_example_gradients", by_row)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sensitivity.__globals__, "_ROUNDS", 6)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_an_engine_that_clips_rows_is_found(engine_that_clips_rows: None, sampling: str) -> None:
    training = alone(EngineUnderTest("reference"))
    finding = sensitivity(training, Claim(sampler=sampling, rows=40))
    assert not finding.passed
    assert finding.detail.startswith("one person with 40 rows moved an update by up to 39.99")
    assert finding.measured["influence"] == pytest.approx(40, abs=1e-3)
    assert not canary(training, Claim(sampler=sampling, rows=40), updates=20).passed
    # One who audits it by records sees nothing of that.
    assert sensitivity(training, Claim(sampler=sampling)).passed


class GuardThatClipsRows(LocalTraining):
    """Persons are drawn, and each of their rows is clipped for itself."""

    def __init__(self, model: Any, data: Any, *given: Any, **settings: Any) -> None:
        super().__init__(model, data, *given, **settings)
        self.rows_alone = LocalTraining(model, replace(data, persons=None), *given, **settings)
        self.persons = data.persons

    def _clipped_sum(self, weights: Any, lattice: Any, batch: Any, size: int) -> Any:
        return self.rows_alone._clipped_sum(weights, lattice, self.persons.all_rows(batch), size)


def test_a_guard_that_clips_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "LocalTraining", GuardThatClipsRows)
    finding = sensitivity(alone(GuardUnderTest()), Claim(sampler="poisson", rows=5))
    assert not finding.passed
    assert finding.measured["influence"] == pytest.approx(5, abs=0.01)
    (found,) = isolation(ModelsUnderTest("guard"), [Adversary("Plain", Plain)], rows=3)
    assert (found.verdict, round(found.moved)) == ("BROKEN", 3)


OURS = [
    EngineUnderTest("reference"),
    EngineUnderTest("batched"),
    EngineUnderTest("reference", private=True, dtype=torch.float32),
    EngineUnderTest("batched", private=True, dtype=torch.float32),
    GuardUnderTest(),
]


@pytest.mark.parametrize("training", OURS, ids=["reference", "batched", "private reference",
                                                "private batched", "guard"])  # fmt: skip
def test_ours_pass(training: Any) -> None:
    finding = sensitivity(alone(training), CLAIM)
    assert finding.passed, str(finding)


@pytest.mark.parametrize("training", OURS[2:], ids=["reference", "batched", "guard"])
@pytest.mark.parametrize("person_rows", ["sum", "mean"])
def test_what_a_person_contributes(training: Any, person_rows: Any) -> None:
    """All rows, added or averaged, are clipped as one; or nothing, if one is not finite."""
    claim = Claim(sampler="fixed", noise_multiplier=2.0**-20, rows=5, person_rows=person_rows)
    every: Any = {"batch_size": 4, "seed": 0, "cohorts": np.array([[0]])}
    gradients = np.diag([0.5, 1.0, 2.0, 0.25])
    for unequal, first in (("", 0.5), ("which cancel", 0.5), ("one of them not finite", 0.0)):
        update = training(gradients, claim=replace(claim, unequal=unequal), **every)[0, 0]
        np.testing.assert_allclose(update * 4, [first, 1.0, 1.0, 0.25], atol=1e-3)


class Step:
    """A noisy step over persons; parts of it can be wrong."""

    def __init__(self, *, clips_rows: bool = False, draws_rows: bool = False) -> None:
        self.clips_rows, self.draws_rows = clips_rows, draws_rows

    def __call__(
        self,
        gradients: Any,
        *,
        persons: Any,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        rng_seed: int,
    ) -> Any:
        rng, count = np.random.default_rng(rng_seed), int(persons.max()) + 1
        units = np.arange(len(persons)) if self.draws_rows else persons
        chosen = (rng.random(int(units.max()) + 1) < batch_size / count)[units]
        with np.errstate(all="ignore"):
            rows = gradients if self.clips_rows else self.sums(gradients, persons)
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = np.where(np.isfinite(norms), rows / np.maximum(1, norms / clip), 0)
        if self.clips_rows:
            total = rows[chosen].sum(0)
        else:
            total = rows[np.isin(np.arange(count), persons[chosen])].sum(0)
        noise = noise_multiplier * clip * rng.standard_normal(gradients.shape[1])
        return (total + noise) / batch_size

    def sums(self, gradients: Any, persons: Any) -> Any:
        found = np.zeros((int(persons.max()) + 1, gradients.shape[1]))
        np.add.at(found, persons, gradients)
        return found


def test_a_whole_audit_of_persons() -> None:
    findings = audit_training(StepUnderTest(Step()), Claim(sampler="poisson", rows=7))
    assert [finding.test[0] for finding in findings] == list("BCEJK")
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


def test_persons_of_a_distributed_sum() -> None:
    sums = partial(
        EngineUnderTest("batched", distributed=True).sums, unit=Claim(sampler="poisson", rows=3)
    )
    finding = masked_sum(sums, example_plan(), dimension=2000)
    assert finding.passed, str(finding)


@pytest.mark.parametrize(
    ("step", "test", "rows"),
    [(Step(clips_rows=True), one_run, 20), (Step(draws_rows=True), sampler, 3)],
    ids=["rows clipped", "rows drawn"],
)
def test_one_that_takes_rows_for_persons_is_found(step: Step, test: Any, rows: int) -> None:
    claim = Claim(sampler="poisson", rows=rows, noise_multiplier=8.0)
    assert not test(StepUnderTest(step), claim).passed

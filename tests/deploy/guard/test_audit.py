# SPDX-License-Identifier: Apache-2.0
"""The privacy tests of the engines, on the guard's own step, and on steps that are wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.audit import Claim, audit_training, freshness, noise_law, sampler, sensitivity
from dpcohort.deploy.guard import _training as module
from dpcohort.deploy.guard._files import GuardedData
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.engine import Lattice
from dpcohort.engine import _lattice as lattice_module


class InputsAsGradients:
    """Of a model whose gradient at a record is the record."""

    def clipped_sum(self, weights, lattice, rows, gather, batch_size):
        return lattice.clipped_sum(gather(rows)[0])


class GuardUnderTest:
    """The guard's step on gradients that a test chooses, with bytes of a key."""

    def __init__(self, keystream):
        self._keystream = keystream

    def __call__(self, gradients, *, claim, batch_size, seed, cohorts, local_steps=1):
        size, dimension = gradients.shape
        step = object.__new__(LocalTraining)
        step._data = GuardedData(gradients, np.zeros(size, np.int64), "")
        step._isolated, step._persons = InputsAsGradients(), None
        step.dimension = dimension
        lattice = Lattice(claim.noise_multiplier, claim.clip)
        batches = (claim.sampler, batch_size / size, batch_size)
        weights = np.zeros(dimension, np.float32)
        updates = []
        for number in range(cohorts.size):  # each draw has bytes of its own, however many steps
            step._source = self._keystream(f"audit {seed} {number}")
            sizes = [1.0] * local_steps
            updates.append(step.update(weights, lattice, batches, sizes))
        return np.stack(updates).reshape(*cohorts.shape, dimension)


@pytest.fixture
def audited(keystream, monkeypatch):
    # The tests compare to the last bits; the cast to float32 comes after all that is private.
    monkeypatch.setattr(module, "_as_float32", lambda values: np.asarray(values))
    return GuardUnderTest(keystream)


CLAIM = Claim(sampler="poisson", clip=0.5, noise_multiplier=2.0)


def test_the_guards_step_keeps_its_claim(audited):
    for finding in audit_training(audited, CLAIM):
        assert finding.passed, str(finding)
    for test in (sensitivity, sampler):  # what differs with batches of a fixed size
        finding = test(audited, replace(CLAIM, sampler="fixed"), seed=0)
        assert finding.passed, str(finding)


def _half_noise(monkeypatch):
    real = lattice_module.release
    less = lambda total, exponents, *rest, **kept: real(  # noqa: E731
        total, [e - 1 for e in exponents], *rest, **kept
    )
    monkeypatch.setattr(lattice_module, "release", less)


def _no_clip(monkeypatch):
    raw = lambda self, gradients: (gradients / self.unit).trunc().long().sum(0)  # noqa: E731
    monkeypatch.setattr(Lattice, "clipped_sum", raw)


def _same_noise(monkeypatch):
    real = lattice_module.release
    again = lambda total, exponents, keys, **kept: real(  # noqa: E731
        total, exponents, [bytes(32)] * len(keys), **kept
    )
    monkeypatch.setattr(lattice_module, "release", again)


def _all_records(monkeypatch):
    everyone = lambda *_, size, **__: lambda step: np.arange(size)  # noqa: E731
    monkeypatch.setattr(module, "draw_batches", everyone)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (_half_noise, noise_law),
        (_no_clip, sensitivity),
        (_same_noise, freshness),
        (_all_records, sampler),
    ],
    ids=["half the noise", "no clip", "noise used again", "no sampling"],
)
def test_the_same_tests_catch_a_step_that_is_wrong(audited, monkeypatch, mutant, test):
    mutant(monkeypatch)
    assert not test(audited, CLAIM, seed=0).passed

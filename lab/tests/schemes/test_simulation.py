# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.errors import InputError
from dpcohort.runs import configured_job
from dpcohort_lab.schemes.simulation import Simulation

from .conftest import small_config


def test_cohorts_are_uniform_without_replacement_and_repeat(simulation):
    cohorts = simulation.cohorts()
    assert len(cohorts) == simulation.training.rounds
    assert all(np.unique(cohort).size == cohort.size == 3 for cohort in cohorts)
    again = simulation.cohorts()
    assert all(np.array_equal(a, b) for a, b in zip(cohorts, again, strict=True))


def test_clipped_sums_are_those_of_the_single_gradients(simulation):
    weights, positions = simulation.initial(), np.arange(7)
    start = int(simulation.sizes[0])
    raw = simulation.raw_gradients(weights, start + positions)
    norms = raw.norm(dim=1, keepdim=True)
    clip = float(norms.median())
    wanted = (raw * (clip * (1 - 1e-5) / norms).clamp(max=1)).sum(0)
    assert torch.allclose(simulation.clipped_sum(weights, 1, positions, clip), wanted, atol=1e-5)
    assert torch.allclose(simulation.clipped_sum(weights, 1, positions), raw.sum(0), atol=1e-5)
    assert not simulation.clipped_sum(weights, 1, np.array([], dtype=np.int64)).any()


def test_the_servers_records_are_not_in_the_accuracy(monkeypatch):
    given = []
    monkeypatch.setattr(
        "dpcohort_lab.schemes.simulation.evaluator_on",
        lambda model, inputs, targets, task: given.append((inputs, targets)),
    )
    Simulation.of(small_config())
    (inputs, labels), (others, of_others) = given
    assert len(labels) == round(0.25 * (len(labels) + len(of_others)))
    rows, rest = ({tuple(row.ravel().tolist()) for row in part} for part in (inputs, others))
    assert not rows & rest


def test_noise_has_a_name_and_no_two_names_share_it(simulation):
    first = simulation.noise(0, 1)
    assert torch.equal(first, simulation.noise(0, 1))
    for other in (simulation.noise(1, 1), simulation.noise(0, 2), simulation.noise(0, 1, step=1)):
        assert abs(float((first * other).mean())) < 6 / np.sqrt(simulation.dimension)


def test_a_private_job_is_refused():
    config = small_config().with_overrides(["data.public=false"])
    job = configured_job(config, device="cpu")
    with pytest.raises(InputError, match="dpcohort train"):
        Simulation(job)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("privacy.trust=distributed", r"privacy\.trust=local does"),
        ("privacy.unit=person", r"privacy\.unit=record does"),
    ],
)
def test_another_trust_or_unit_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        Simulation.of(small_config().with_overrides([change]))

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.errors import InputError
from dpcohort.lab.schemes.federation import Federation
from dpcohort.runs.configured import configured_job

from .conftest import small_config


def test_cohorts_are_uniform_without_replacement_and_repeat(federation):
    cohorts = federation.cohorts()
    assert len(cohorts) == federation.training.rounds
    assert all(np.unique(cohort).size == cohort.size == 3 for cohort in cohorts)
    again = federation.cohorts()
    assert all(np.array_equal(a, b) for a, b in zip(cohorts, again, strict=True))


def test_clipped_sums_are_those_of_the_single_gradients(federation):
    weights, positions = federation.initial(), np.arange(7)
    start = int(federation.sizes[0])
    raw = federation.raw_gradients(weights, start + positions)
    norms = raw.norm(dim=1, keepdim=True)
    clip = float(norms.median())
    wanted = (raw * (clip * (1 - 1e-5) / norms).clamp(max=1)).sum(0)
    assert torch.allclose(federation.clipped_sum(weights, 1, positions, clip), wanted, atol=1e-5)
    assert torch.allclose(federation.clipped_sum(weights, 1, positions), raw.sum(0), atol=1e-5)
    assert not federation.clipped_sum(weights, 1, np.array([], dtype=np.int64)).any()


def test_the_servers_records_are_not_in_the_accuracy(federation):
    test, server = federation._evaluator, federation._server
    counts = [part._targets.shape[0] for part in (test, server)]
    assert counts[1] == round(0.25 * sum(counts))
    rows = {tuple(row.tolist()) for row in server._inputs.flatten(1)}
    others = {tuple(row.tolist()) for row in test._inputs.flatten(1)}
    assert not rows & others


def test_noise_has_a_name_and_no_two_names_share_it(federation):
    first = federation.noise(0, 1)
    assert torch.equal(first, federation.noise(0, 1))
    for other in (federation.noise(1, 1), federation.noise(0, 2), federation.noise(0, 1, step=1)):
        assert abs(float((first * other).mean())) < 6 / np.sqrt(federation.dimension)


def test_private_entropy_and_an_empty_server_are_refused():
    job = configured_job(small_config(), device="cpu", private_entropy=True)
    with pytest.raises(InputError, match="dpcohort train"):
        Federation(job)
    with pytest.raises(InputError, match="server_share"):
        Federation(configured_job(small_config(), device="cpu"), server_share=1e-6)

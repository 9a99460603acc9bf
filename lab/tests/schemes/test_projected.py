# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dpcohort_lab.schemes.last_iterate import LastIterate, least_noise, one_pass
from dpcohort_lab.schemes.named import make_scheme

PASSES = LastIterate(
    noise_multiplier=1.0, steps=8, batch_size=8, clip=1.0, step_size=0.2, radius=0.2
)


@pytest.mark.parametrize("epsilon", [0.4, 3.0])
@pytest.mark.parametrize("sharp", [True, False], ids=["sharp", "published"])
def test_the_least_noise_certifies_and_less_does_not(epsilon, sharp):
    noise = least_noise(PASSES, epsilon=epsilon, delta=1e-5, count=6, sharp=sharp)

    def spent(z):
        return replace(PASSES, noise_multiplier=z).epsilon(1e-5, passes=6, sharp=sharp)

    assert spent(noise) <= epsilon < spent(0.98 * noise)


def test_noise_law_without_projection_in_the_way(silent, mean_square):
    outcome = make_scheme("last-iterate", radius=1e4).run(silent)
    noise = [receipt.noise_multiplier for receipt in outcome.receipts]
    steps = -(-silent.sizes // silent.batch_sizes)
    stds = [
        0.5 * noise[k] / silent.batch_sizes[k] * math.sqrt(steps[k]) for k in range(len(silent))
    ]
    wanted = [
        math.sqrt(sum(stds[k] ** 2 for k in cohort)) / cohort.size for cohort in silent.cohorts()
    ]
    count = len(wanted) * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)


def test_no_upload_leaves_the_ball_and_every_record_is_in_one_batch(simulation, monkeypatch):
    seen, whole = [], type(simulation).clipped_sum

    def spy(self, weights, client, positions, clip=None):
        seen.append(positions)
        return whole(self, weights, client, positions, clip)

    monkeypatch.setattr(type(simulation), "clipped_sum", spy)
    weights = simulation.initial()
    update, _ = one_pass(simulation, 0, 1, weights, 2.0, 0.3)
    assert 0.2 < float(update.double().norm()) <= 0.3
    assert torch.cat([torch.as_tensor(p) for p in seen]).sort()[0].tolist() == list(
        range(int(simulation.sizes[1]))
    )


def test_training_on_digits_keeps_every_promise(simulation):
    outcome = make_scheme("last-iterate", "formula").run(simulation)
    assert outcome.broken == 0
    for receipt in outcome.receipts:
        if receipt.uses:
            assert receipt.certified_epsilon <= receipt.claimed_epsilon <= receipt.promised_epsilon
    assert "rounds compose in full" in outcome.receipts[0].text()

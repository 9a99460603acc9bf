# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpcohort_lab.schemes.client_noise import noisy_local_steps
from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.sampled_gaussian import certified_noise
from dpcohort_lab.schemes.scheme import participations


def test_noise_law(silent, mean_square):
    outcome = make_scheme("dp-fedavg").run(silent)
    cohorts = silent.cohorts()
    steps = participations(cohorts, len(silent))
    noise = certified_noise(silent.population, rates=silent.rates, steps=steps)
    stds = 0.5 * noise * silent.training.clip / silent.batch_sizes
    wanted = [math.sqrt((stds[cohort] ** 2).sum()) / cohort.size for cohort in cohorts]
    count = len(cohorts) * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)
    assert outcome.noise_std == pytest.approx(math.sqrt(np.mean(np.square(wanted))))


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_training_on_digits_and_its_receipts(simulation, mode):
    outcome = make_scheme("dp-fedavg", mode).run(simulation)
    assert outcome.card["neighbours"] == ("zero-out" if mode == "honest" else "replace-one")
    assert outcome.rounds == 5
    assert 0 <= outcome.accuracy <= 1
    uses = participations(simulation.cohorts(), len(simulation))
    assert [receipt.uses for receipt in outcome.receipts] == uses.tolist()
    assert outcome.broken == 0  # at these settings the paper's noise certifies as well
    if mode == "honest":
        assert outcome.largest_share > 0.99
    else:
        assert all(r.claimed_epsilon == r.promised_epsilon for r in outcome.receipts)


def test_every_local_step_has_a_batch_and_noise_of_its_own():
    """Noise used again would be the same noise for several answers: it can be taken off."""
    asked = []
    simulation = SimpleNamespace(
        training=SimpleNamespace(clip=0.5, local_steps=3),
        batch_sizes=np.array([10, 20]),
        step_size=lambda t: 0.1,
        batch=lambda k, **name: asked.append((k, name)) or np.arange(2),
        clipped_sum=lambda weights, k, batch, clip: torch.zeros(4),
        noise=lambda t, k, step: torch.eye(4)[step],
    )
    update, std = noisy_local_steps(simulation, 7, 1, torch.zeros(4), rate=0.25, noise=3.0)
    assert update.tolist() == pytest.approx([0.1 * 3.0 * 0.5 / 20] * 3 + [0.0])
    assert std == pytest.approx(0.1 * 3.0 * 0.5 / 20 * math.sqrt(3))
    assert [name["step"] for _, name in asked] == [0, 1, 2]
    assert all((k, name["round"], name["rate"]) == (1, 7, 0.25) for k, name in asked)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import torch

from dpcohort.accounting import gaussian_delta
from dpcohort_lab.schemes.client_noise import clip_update
from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.sampled_gaussian import certified_noise
from dpcohort_lab.schemes.scheme import participations


def test_noise_law_and_the_gaussian_curve_by_hand(silent, mean_square):
    outcome = make_scheme("model-clipping", update_clip=0.3).run(silent)
    cohorts = silent.cohorts()
    uses = participations(cohorts, len(silent))
    noise = certified_noise(silent.population, rates=1.0, steps=uses)
    stds = 0.3 * noise
    wanted = [math.sqrt((stds[cohort] ** 2).sum()) / cohort.size for cohort in cohorts]
    count = len(cohorts) * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)
    for receipt, z in zip(outcome.receipts, noise, strict=True):
        mu = math.sqrt(receipt.uses) / z
        assert gaussian_delta(epsilon=receipt.promised_epsilon, mu=mu) <= 1e-5


def test_clipping_keeps_short_updates_and_drops_what_is_not_finite():
    assert torch.equal(clip_update(torch.tensor([0.1, 0.0]), 1.0), torch.tensor([0.1, 0.0]))
    assert not clip_update(torch.tensor([math.nan, 1.0]), 1.0).any()
    assert not clip_update(torch.zeros(2), 1.0).any()


def test_training_on_digits_keeps_every_promise_for_whole_clients(simulation):
    outcome = make_scheme("model-clipping").run(simulation)
    assert outcome.card["unit"] == "client"
    assert outcome.broken == 0
    assert outcome.largest_share > 0.99
    assert np.isfinite(outcome.loss)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.shared_noise import individual_noise, scale_clips

PEOPLE = Population.from_arrays(
    sizes=[100, 50, 50],
    epsilon=[1.0, 4.0, np.nan],
    delta=[1e-5, 1e-5, np.nan],
    public=[False, False, True],
)


def test_scale_by_hand():
    # z is the mean of 6 and 3 over 100 and 50 records, 5; C_k = 5/6 and 5/3; public stays at C.
    noise, clips = scale_clips(PEOPLE, np.array([6.0, 3.0, 0.0]))
    assert noise == pytest.approx(5.0)
    assert clips == pytest.approx([5 / 6, 5 / 3, 1.0])
    assert (noise / clips[:2] >= [6.0, 3.0]).all()


@pytest.mark.parametrize("variant", ["scale", "sample"])
def test_noise_law(silent, mean_square, variant):
    make_scheme(f"idp-{variant}").run(silent)
    rate = float(silent.batch_sizes.sum() / silent.sizes.sum())
    noise, *_ = individual_noise(silent.population, "honest", variant, rate=rate, steps=24)
    std = 0.5 * noise * silent.training.clip / (rate * silent.total_size)
    count = 24 * silent.dimension
    assert abs(mean_square(silent, np.full(24, std)) - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("variant", ["scale", "sample"])
@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_training_on_digits_keeps_every_promise(simulation, variant, mode):
    outcome = make_scheme(f"idp-{variant}", mode).run(simulation)
    assert outcome.broken == 0
    if mode == "honest":
        assert outcome.largest_share > 0.99
    else:  # Renyi accounting claims more than is spent
        for receipt in outcome.receipts:
            assert receipt.certified_epsilon <= receipt.claimed_epsilon * (1 + 1e-9)


def test_each_client_is_clipped_at_its_own_clip(simulation, monkeypatch):
    seen = {}
    whole = type(simulation).clipped_sum

    def spy(self, weights, client, positions, clip=None):
        seen[client] = clip
        return whole(self, weights, client, positions, clip)

    monkeypatch.setattr(type(simulation), "clipped_sum", spy)
    outcome = make_scheme("idp-scale").run(simulation)
    noise = [receipt.noise_multiplier for receipt in outcome.receipts]
    product = [seen[k] * noise[k] for k in range(len(simulation))]
    assert product == pytest.approx([product[0]] * len(product))  # z_k C_k = z C for all

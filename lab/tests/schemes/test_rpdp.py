# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting import certify_epsilon
from dpcohort.clients import Population
from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.scheme import participations
from dpcohort_lab.schemes.shared_noise import fit_curve, personal_rates

PEOPLE = Population.from_arrays(sizes=[60, 60, 60], epsilon=[0.5, 2.0, 6.0], delta=1e-5)


def test_the_fit_says_how_far_it_is_off():
    a, b, c, error = fit_curve(noise_multiplier=3.0, steps=30, delta=1e-5)
    for rate in (0.05, 0.2, 0.5):
        true = certify_epsilon(
            method="pld", delta=1e-5, noise_multiplier=3.0, sampling_rate=rate, steps=30
        )
        assert abs(math.exp(a * rate + b) + c - true) <= error * 1.001
    assert error > 1e-3  # an exponential is not the true shape


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_no_client_is_ever_under_noised(mode):
    steps = np.array([30, 30, 12])
    noise, rates, _, notes = personal_rates(PEOPLE, mode, mean_rate=0.15, steps=steps)
    for k in range(3):
        spent = certify_epsilon(
            method="pld",
            delta=1e-5,
            noise_multiplier=noise,
            sampling_rate=float(rates[k]),
            steps=int(steps[k]),
        )
        assert spent <= PEOPLE.epsilon[k]
    assert rates[0] < rates[1] < rates[2]
    assert bool(notes) == (mode == "formula")


def test_noise_law(silent, mean_square):
    make_scheme("rpdp").run(silent)
    cohorts = silent.cohorts()
    mean_rate = float(silent.batch_sizes.sum() / silent.sizes.sum())
    steps = participations(cohorts, len(silent))
    noise, *_ = personal_rates(silent.population, "honest", mean_rate=mean_rate, steps=steps)
    stds = 0.5 * noise * silent.training.clip / silent.batch_sizes
    wanted = [math.sqrt((stds[cohort] ** 2).sum()) / cohort.size for cohort in cohorts]
    count = len(cohorts) * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_training_on_digits_keeps_every_promise(simulation, mode):
    outcome = make_scheme("rpdp", mode).run(simulation)
    assert outcome.broken == 0
    assert any("off by up to" in words for words in outcome.notes) == (mode == "formula")

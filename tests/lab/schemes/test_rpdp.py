# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting.events import certify_epsilon
from dpcohort.clients import Population
from dpcohort.lab.schemes.shared_noise import RPDP, FittedCurve, fit_curve
from dpcohort.lab.schemes.simulation import participations

PEOPLE = Population.from_arrays(sizes=[60, 60, 60], epsilon=[0.5, 2.0, 6.0], delta=1e-5)


def test_the_curve_inverts_itself_and_is_cut_to_rates():
    curve = FittedCurve(1.5, 0.2, -1.0, 0.0)
    assert curve.rate(curve.epsilon(0.4)) == pytest.approx(0.4)
    assert curve.rate(-2.0) == 0
    assert curve.rate(1e9) == 1


def test_the_fit_says_how_far_it_is_off():
    curve = fit_curve(noise_multiplier=3.0, steps=30, delta=1e-5)
    for rate in (0.05, 0.2, 0.5):
        true = certify_epsilon(
            method="pld", delta=1e-5, noise_multiplier=3.0, sampling_rate=rate, steps=30
        )
        assert abs(curve.epsilon(rate) - true) <= curve.largest_error * 1.001
    assert curve.largest_error > 1e-3  # an exponential is not the true shape


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_no_client_is_ever_under_noised(mode):
    steps = np.array([30, 30, 12])
    plan, _, notes = RPDP(mode=mode).personal_rates(PEOPLE, mean_rate=0.15, steps=steps)
    for k in range(3):
        spent = certify_epsilon(
            method="pld",
            delta=1e-5,
            noise_multiplier=plan.noise_multiplier,
            sampling_rate=float(plan.rates[k]),
            steps=int(steps[k]),
        )
        assert spent <= PEOPLE.epsilon[k]
    assert plan.rates[0] < plan.rates[1] < plan.rates[2]
    assert bool(notes) == (mode == "formula")


def test_noise_law(silent, mean_square):
    scheme = RPDP()
    scheme.run(silent)
    cohorts = silent.cohorts()
    mean_rate = float(silent.batch_sizes.sum() / silent.sizes.sum())
    plan, *_ = scheme.personal_rates(
        silent.population, mean_rate=mean_rate, steps=participations(cohorts, len(silent))
    )
    stds = 0.5 * plan.noise_multiplier * silent.training.clip / silent.batch_sizes
    wanted = [math.sqrt((stds[cohort] ** 2).sum()) / cohort.size for cohort in cohorts]
    count = len(cohorts) * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_training_on_digits_keeps_every_promise(simulation, mode):
    outcome = RPDP(mode=mode).run(simulation)
    assert outcome.broken == 0
    assert any("off by up to" in words for words in outcome.notes) == (mode == "formula")

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.scheme import mean_of_cohort
from dpcohort_lab.schemes.simulation import train_scheme


def test_the_mean_of_a_cohort_and_the_noise_in_it():
    cohorts = [np.array([0, 2, 5])]

    def update(t, k, weights):
        return torch.full((2,), float(k)), 1.0 + k

    uses = np.zeros(6, dtype=int)
    mean, noise = mean_of_cohort(cohorts, update, uses)(0, torch.zeros(2))
    assert uses.tolist() == [1, 0, 1, 0, 0, 1]
    assert mean.tolist() == pytest.approx([7 / 3, 7 / 3])
    assert noise == pytest.approx(math.sqrt(1 + 9 + 36) / 3)


def test_a_scheme_may_stop_early_and_the_noise_is_a_mean_square(simulation):
    stds = iter([3.0, 4.0])

    def update(t, weights):
        return (torch.zeros_like(weights), next(stds)) if t < 2 else None

    def account():
        none = np.zeros(len(simulation), dtype=int)
        return {"certified": none, "uses": none, "assumptions": [], "notes": ["n"]}

    outcome = train_scheme(make_scheme("udp"), simulation, update, account)
    assert outcome.rounds == 2
    assert outcome.noise_std == pytest.approx(math.sqrt(12.5))
    assert outcome.notes == ("n",)
    assert outcome.accuracy == simulation.evaluate(simulation.initial()).accuracy

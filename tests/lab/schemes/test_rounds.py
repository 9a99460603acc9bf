# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpcohort.lab.schemes.named import make_scheme
from dpcohort.lab.schemes.rounds import mean_of_cohort, participations, train_rounds


def test_the_mean_of_a_cohort_and_the_noise_in_it(federation):
    cohorts = [np.array([0, 2, 5])]

    def update(t, k, weights):
        return torch.full((2,), float(k)), 1.0 + k

    mean, noise = mean_of_cohort(federation, cohorts, update)(0, torch.zeros(2))
    assert mean.tolist() == pytest.approx([7 / 3, 7 / 3])
    assert noise == pytest.approx(math.sqrt(1 + 9 + 36) / 3)


def test_an_empty_cohort_moves_nothing(federation):
    empty = [np.array([], dtype=np.int64)]
    mean, noise = mean_of_cohort(federation, empty, lambda *_: None)(0, torch.ones(2))
    assert mean.tolist() == [0, 0]
    assert noise == 0


def test_participations_of_nobody():
    assert participations([], 2).tolist() == [0, 0]


def test_a_scheme_may_stop_early_and_the_noise_is_a_mean_square(federation):
    stds = iter([3.0, 4.0])

    def update(t, weights):
        return (torch.zeros_like(weights), next(stds)) if t < 2 else None

    card = make_scheme("udp").card
    outcome = train_rounds(
        federation, update, card=card, mode="honest", receipts=list, notes=lambda: ["n"]
    )
    assert outcome.rounds == 2
    assert outcome.noise_std == pytest.approx(math.sqrt(12.5))
    assert outcome.notes == ("n",)
    assert outcome.accuracy == federation.evaluate(federation.initial()).accuracy

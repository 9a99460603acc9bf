# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.runs import train


def _plan(rule):
    clients = Population.from_arrays(
        sizes=[300, 250, 200, 150, 100],
        epsilon=[0.5, 1.0, 2.0, 8.0, float("nan")],
        delta=[1e-5] * 4 + [float("nan")],
        public=[False] * 4 + [True],
    )
    settings = Training(rounds=6, cohort_size=4, sampling_rate=0.1, dimension=650)
    return make_plan(clients, settings, selection=rule, seed=0)


@pytest.fixture(scope="session")
def plans():
    return {rule: _plan(rule) for rule in ("unbiased", "privacy-aware")}


@pytest.fixture(scope="session")
def runs(plans):
    return [
        train(
            plans["privacy-aware"], "logistic", "digits", device="cpu", seed=seed, evaluate_every=2
        )
        for seed in (0, 1)
    ]

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort_lab.schemes.local_reports import shared_report_epsilon
from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.randomiser import report_length
from dpcohort_lab.schemes.shuffling import shuffled_epsilon

PEOPLE = Population.from_arrays(sizes=[500, 500], epsilon=[1.0, 4.0], delta=1e-5)
SETTING = {"reports": 200, "records": 1000, "rounds": 20}


def test_the_strictest_client_sets_the_reports_and_they_certify():
    e0 = shared_report_epsilon(PEOPLE, "honest", **SETTING)
    spent = shuffled_epsilon(local_epsilon=e0, reports=200, rate=0.2, rounds=20, delta=1e-5)
    more = shuffled_epsilon(local_epsilon=1.02 * e0, reports=200, rate=0.2, rounds=20, delta=1e-5)
    assert spent <= 1.0 < more


def test_the_closed_form_allows_less():
    closed, computed = (
        shared_report_epsilon(PEOPLE, mode, **SETTING) for mode in ("formula", "honest")
    )
    assert closed < computed


def test_noise_law(silent, mean_square):
    outcome = make_scheme("cldp").run(silent)
    reports = int(silent.batch_sizes.sum())
    e0 = shared_report_epsilon(
        silent.population, "honest", reports=reports, records=silent.total_size, rounds=24
    )
    length = report_length(clip=1.0, local_epsilon=e0, dimension=silent.dimension)
    std = 0.5 * length / math.sqrt(silent.dimension * reports)
    assert outcome.noise_std == pytest.approx(std)
    count = 24 * silent.dimension
    assert abs(mean_square(silent, np.full(24, std)) - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_training_on_digits_keeps_every_promise_and_says_what_it_trusts(simulation, mode):
    outcome = make_scheme("cldp", mode).run(simulation)
    assert outcome.broken == 0
    receipt = outcome.receipts[0]
    assert receipt.certified_epsilon < receipt.claimed_epsilon
    assert "shuffler is honest" in receipt.text()
    assert "no amplification by shuffling" in receipt.text()  # too few reports for the closed form
    assert "without the shuffler" in outcome.notes[0]

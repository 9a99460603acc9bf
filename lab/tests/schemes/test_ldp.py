# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort_lab.schemes.local_reports import own_report_epsilons
from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.randomiser import report_length, sampled_records
from dpcohort_lab.schemes.shuffling import local_epsilon


@pytest.mark.parametrize("uses", [1, 3, 40])
def test_own_epsilons_keep_own_budgets(uses):
    people = Population.from_arrays(sizes=[50, 50], epsilon=[0.5, 5.0], delta=1e-5)
    found = own_report_epsilons(people, np.array([uses, uses]))
    for k in range(2):
        spent = local_epsilon(report_epsilon=float(found[k]), reports=uses, delta=1e-5)
        assert 0.999 * people.epsilon[k] < spent <= people.epsilon[k]


def test_noise_law(silent, mean_square):
    outcome = make_scheme("ldp").run(silent)
    reports = int(silent.batch_sizes.sum())
    owner = np.repeat(np.arange(len(silent)), silent.sizes)
    uses = np.array([receipt.uses for receipt in outcome.receipts])
    own = own_report_epsilons(silent.population, uses)
    lengths = np.array(
        [report_length(clip=1.0, local_epsilon=e, dimension=silent.dimension) for e in own]
    )
    wanted = []
    for t in range(24):
        rows = sampled_records(silent, t, reports)
        mean = (lengths[owner[rows]] ** 2).sum() / silent.dimension / reports**2
        wanted.append(0.5 * math.sqrt(mean))
    count = 24 * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)

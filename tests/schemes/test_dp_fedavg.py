# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.schemes.dp_fedavg import DPFedAvg
from dpcohort.schemes.rounds import participations


def test_noise_law(silent, mean_square):
    scheme = DPFedAvg()
    outcome = scheme.run(silent)
    cohorts = silent.cohorts()
    steps = participations(cohorts, len(silent))
    noise = scheme.noise_multipliers(silent.population, rates=silent.rates, steps=steps)
    stds = 0.5 * noise * silent.training.clip / silent.batch_sizes
    wanted = [math.sqrt((stds[cohort] ** 2).sum()) / cohort.size for cohort in cohorts]
    count = len(cohorts) * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)
    assert outcome.noise_std == pytest.approx(math.sqrt(np.mean(np.square(wanted))))


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_training_on_digits_and_its_receipts(federation, mode):
    outcome = DPFedAvg(mode=mode).run(federation)
    assert outcome.rounds == 5
    assert 0 <= outcome.accuracy <= 1
    uses = participations(federation.cohorts(), len(federation))
    assert [receipt.uses for receipt in outcome.receipts] == uses.tolist()
    assert outcome.broken == 0  # at these settings the paper's noise certifies as well
    if mode == "honest":
        assert outcome.largest_share > 0.99
    else:
        assert all(r.claimed_epsilon == r.promised_epsilon for r in outcome.receipts)


def test_the_same_seed_gives_the_same_model(federation):
    first, second = (DPFedAvg().run(federation) for _ in range(2))
    assert first.loss == second.loss

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from dpcohort.clients import Population
from dpcohort.plan import make_plan
from dpcohort.progress import silent
from dpcohort.training import Training


def test_a_plan_tells_how_many_promises_are_certified():
    heard = []
    clients = Population.from_arrays(sizes=[300] * 5, epsilon=np.arange(1, 6), delta=1e-5)
    training = Training(rounds=5, cohort_size=5)
    make_plan(clients, training, seed=0, progress=lambda *said: heard.append(said))
    assert heard[0] == ("certifying", 0, 5)
    assert heard[-1] == ("certifying", 5, 5)
    assert silent("certifying", 0, 5) is None

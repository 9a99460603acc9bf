# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.aggregation import Cohort


@pytest.fixture
def make_cohort():
    """A cohort of the given noise stds; clients 0, 1, ... unless named."""

    def make(stds, clients=None):
        stds = np.asarray(stds, dtype=np.float64)
        who = np.arange(stds.size) if clients is None else np.asarray(clients)
        draws = np.array([int((who[:i] == who[i]).sum()) for i in range(who.size)], dtype=np.int64)
        return Cohort(
            round=3, clients=who, draws=draws, noise_multipliers=stds * 10.0,
            batch_sizes=np.full(stds.size, 10), noise_stds=stds,
        )  # fmt: skip

    return make

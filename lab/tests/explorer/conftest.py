# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.plan import Plan


def small_plan(**changes: object) -> Plan:
    """Eight clients, one of them public and two with names that are no markup; eight rounds."""
    clients = Population.from_arrays(
        ids=["</script><script>window.attacked = 1</script>", "<b>2</b>", *"cdefg", "open data"],
        sizes=[150, 120, 180, 140, 160, 150, 170, 130],
        epsilon=[0.3, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, float("nan")],
        delta=[1e-5] * 7 + [float("nan")],
        public=[False] * 7 + [True],
    )
    settings = Training(rounds=8, cohort_size=4, sampling_rate=0.2, dimension=650)
    return make_plan(clients, settings, selection="privacy-aware", seed=3, **changes)


@pytest.fixture(scope="session")
def plan() -> Plan:
    return small_plan()


@pytest.fixture
def small():
    return small_plan

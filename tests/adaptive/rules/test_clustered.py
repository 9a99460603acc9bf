# SPDX-License-Identifier: Apache-2.0
"""Clusters of updates on a case where they can be seen."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.adaptive.rules import ClusteredUpdates
from dpcohort.errors import InputError

#: Three directions; lengths differ and do not matter.
UPDATES = {
    0: np.array([1.0, 0.1, 0.0]),
    1: np.array([9.0, 0.0, 0.5]),
    2: np.array([0.0, 2.0, 0.1]),
    3: np.array([0.1, 5.0, 0.0]),
    4: np.array([0.0, 0.2, 3.0]),
    5: np.array([0.1, 0.0, 0.7]),
}


def test_the_three_directions_are_found(view_of):
    for seed in range(5):
        view = view_of([10] * 6, updates=UPDATES, seed=seed)
        labels = ClusteredUpdates(clusters=3).labels(view, np.arange(6))
        assert labels[0] == labels[1]
        assert labels[2] == labels[3]
        assert labels[4] == labels[5]
        assert len(set(labels.tolist())) == 3


def test_every_cluster_is_heard(view_of):
    for seed in range(10):
        view = view_of([90, 90, 1, 1, 1, 1], updates=UPDATES, seed=seed, cohort_size=3)
        chosen = ClusteredUpdates(clusters=3).choose(view, {})
        assert {int(k) // 2 for k in chosen} == {0, 1, 2}


def test_clients_never_drawn_come_first(view_of):
    view = view_of([10] * 8, updates=UPDATES, cohort_size=3)
    chosen = ClusteredUpdates(clusters=3).choose(view, {})
    assert {6, 7} < set(chosen.tolist())


def test_an_update_that_is_no_number_harms_nobody(view_of):
    broken = {**UPDATES, 5: np.full(3, np.nan), 4: np.zeros(3)}
    view = view_of([10] * 6, updates=broken, cohort_size=3)
    assert ClusteredUpdates(clusters=3).choose(view, {}).size == 3


@pytest.mark.parametrize("clusters", [0, 1.5])
def test_clusters_are_counted(clusters):
    with pytest.raises(InputError, match="clusters"):
        ClusteredUpdates(clusters=clusters)

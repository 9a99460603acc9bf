# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.clients import Population
from dpcohort_lab.schemes.sampled_gaussian import certified_noise, sampled_epsilon

PEOPLE = Population.from_arrays(
    sizes=[90, 90, 90], epsilon=[1.0, np.nan, 2.0], delta=[1e-5, np.nan, 1e-5],
    public=[False, True, False],
)  # fmt: skip


def test_public_clients_add_none_and_absent_ones_cannot_be_used():
    found = certified_noise(PEOPLE, rates=np.full(3, 0.2), steps=np.array([50, 50, 0]))
    assert found[0] > 1
    assert found[1] == 0
    assert np.isnan(found[2])


@settings(max_examples=10, deadline=None)
@given(
    epsilon=st.floats(0.1, 8),
    rate=st.sampled_from([0.1, 0.5, 1.0]),
    steps=st.integers(1, 60),
    neighbours=st.sampled_from(["zero-out", "replace-one"]),
)
def test_never_below_what_certifies_and_never_far_above(epsilon, rate, steps, neighbours):
    people = Population.from_arrays(sizes=[90], epsilon=epsilon, delta=1e-5)
    rates, count = np.array([rate]), np.array([steps])
    noise = certified_noise(people, rates=rates, steps=count, neighbours=neighbours)
    spent = sampled_epsilon(people, noise, rates, count, neighbours=neighbours)
    assert spent[0] <= epsilon
    less = sampled_epsilon(people, 0.99 * noise, rates, count, neighbours=neighbours)
    assert less[0] > epsilon or noise[0] < 0.021
